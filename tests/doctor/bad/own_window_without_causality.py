# case: own
# class: SlidingWindowAttention
# kwargs: {"dim": 24, "heads": 3, "window": 3}
# options: causal=true
# expect: causality
# where: any
# fix: allowed = ((i - j) < self.window) & (j <= i)
import torch
from torch import nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i, j = torch.arange(s)[:, None], torch.arange(s)[None, :]
        allowed = (i - j).abs() < self.window  # wrong
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(b, s, e))
