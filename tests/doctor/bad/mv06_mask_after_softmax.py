# case: MV-06
# class: SelfAttention
# kwargs: {"hidden": 24, "heads": 2}
# expect: row_sums, padding, constant_values
# fix: probs = scores.masked_fill(~mask[:, None, None, :].bool(), torch.finfo(scores.dtype).min).softmax(dim=-1)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x, mask=None):
        """mask: bool (B, S), True for tokens that count."""
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        probs = scores.softmax(dim=-1)
        if mask is not None:
            probs = probs.masked_fill(~mask[:, None, None, :].bool(), 0.0)  # wrong
        out = (probs @ v).transpose(1, 2).reshape(B, S, E)
        return self.out(out), probs
