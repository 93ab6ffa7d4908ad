# case: own
# class: CausalAttention
# kwargs: {"d_model": 24, "num_heads": 2}
# expect: half_precision
# fix: scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q / q.size(-1) ** 0.5 @ k.transpose(-1, -2)
        future = torch.ones(S, S, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -1e9)  # wrong
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, S, E))
