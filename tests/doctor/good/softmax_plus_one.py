# class: QuietAttention
# kwargs: {"dim": 24, "heads": 3}
# by_design: row_sums, constant_values
# may_warn: row_sums
# probe: m(x)
import torch
from torch import nn


def softmax_one(x, dim=-1):
    """exp(x) / (1 + sum exp(x)): a head may attend to nothing ("Attention is off by one")."""
    m = x.amax(dim=dim, keepdim=True).clamp(min=0)
    e = torch.exp(x - m)
    return e / (torch.exp(-m) + e.sum(dim=dim, keepdim=True))


class QuietAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = softmax_one(q * q.shape[-1] ** -0.5 @ k.mT)
        return self.to_out((w @ v).transpose(1, 2).reshape(b, n, d))
