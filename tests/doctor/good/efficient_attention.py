# class: EfficientAttention
# kwargs: {"dim": 24, "heads": 3}
# by_design: scale
# probe: m(x)
import torch
from torch import nn


class EfficientAttention(nn.Module):
    """Efficient Attention: Attention with Linear Complexities (Shen et al., 2021)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.keys = nn.Linear(dim, dim)
        self.queries = nn.Linear(dim, dim)
        self.values = nn.Linear(dim, dim)
        self.reprojection = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        k = self.keys(x).view(b, n, self.heads, -1)
        q = self.queries(x).view(b, n, self.heads, -1)
        v = self.values(x).view(b, n, self.heads, -1)
        k = k.softmax(dim=1)
        q = q.softmax(dim=-1)
        context = torch.einsum("bnhd,bnhe->bhde", k, v)
        out = torch.einsum("bnhd,bhde->bnhe", q, context)
        return self.reprojection(out.reshape(b, n, c))
