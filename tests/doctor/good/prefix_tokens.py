# class: PrefixAttention
# kwargs: {"dim": 24, "heads": 3, "prefix": 2}
# by_design: constant_values, row_sums
# probe: m(x)
import torch
import torch.nn as nn
import torch.nn.functional as F


class PrefixAttention(nn.Module):
    """Learned keys and values stand before the sequence's own (memory key/values of lucidrains, prefix tuning)."""

    def __init__(self, dim, heads, prefix):
        super().__init__()
        self.heads = heads
        self.mem_k = nn.Parameter(torch.randn(heads, prefix, dim // heads))
        self.mem_v = nn.Parameter(torch.randn(heads, prefix, dim // heads))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k = torch.cat((self.mem_k.expand(b, -1, -1, -1), k), dim=2)
        v = torch.cat((self.mem_v.expand(b, -1, -1, -1), v), dim=2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))
