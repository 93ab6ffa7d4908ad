# case: own
# class: RopeAttention
# kwargs: {"dim": 32, "heads": 4}
# expect: constant_values, permutation
# where: any
# fix: q, k = self.rope(q), self.rope(k)
import torch
import torch.nn as nn
import torch.nn.functional as F


class RopeAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def rope(self, x):
        f = 10000.0 ** (-torch.arange(0, self.hd, 2, device=x.device).float() / self.hd)
        a = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), f)
        c, s = torch.cat((a, a), -1).cos().to(x.dtype), torch.cat((a, a), -1).sin().to(x.dtype)
        u, w = x.chunk(2, dim=-1)
        return x * c + torch.cat((-w, u), -1) * s

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        q, k, v = self.rope(q), self.rope(k), self.rope(v)  # wrong
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, e))
