# class: SafeAttention
# kwargs: {"dim": 24, "heads": 2}
# may_warn: half_precision
# probe: m(x, keep[:, None, :])
import torch
import torch.nn as nn


class SafeAttention(nn.Module):
    """Rows with nothing to attend to become zero, forward and backward."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, attend=None):
        """attend: bool, (B, S, S) or (B, 1, S), True where attention is allowed."""
        b, s, e = x.shape
        q, k, v = (w(x).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-2, -1) * (e // self.heads) ** -0.5
        if attend is not None:
            hidden = ~attend[:, None]
            empty = hidden.all(-1, keepdim=True)
            scores = scores.masked_fill(hidden & ~empty, float("-inf"))
            weights = scores.softmax(-1).masked_fill(empty, 0.0)
        else:
            weights = scores.softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).reshape(b, s, e))
