# case: SC-01
# class: MultiHeadAttention
# kwargs: {"dim": 64, "heads": 4}
# expect: scale
# fix: self.scale = (dim // heads) ** -0.5
import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.scale = dim ** -0.5  # wrong
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dots = torch.einsum('bhid,bhjd->bhij', q, k) * self.scale  # wrong: scale made from dim
        out = torch.einsum('bhij,bhjd->bhid', dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, e))
