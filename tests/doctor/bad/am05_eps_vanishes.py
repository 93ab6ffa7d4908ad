# case: AM-05
# class: LiteMLA
# kwargs: {"dim": 16, "heads": 8}
# expect: half_precision
# fix: self.eps = 1e-4
import torch
import torch.nn.functional as F
from torch import nn


class LiteMLA(nn.Module):
    """ReLU linear attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.eps = 1e-8  # wrong
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.relu(q), F.relu(k)
        kv = k.transpose(-1, -2) @ v
        denominator = q @ k.sum(dim=-2).unsqueeze(-1) + self.eps  # wrong: eps is 0 in float16
        out = (q @ kv) / denominator  # wrong: 0 / 0 in float16
        return self.proj(out.transpose(1, 2).reshape(b, n, c))
