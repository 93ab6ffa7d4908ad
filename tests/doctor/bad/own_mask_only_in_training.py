# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: padding
# where: any
# fix: if mask is not None:
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """mask: (B, S) bool, True = real token"""
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q / q.size(-1) ** 0.5 @ k.mT
        if mask is not None and self.training:  # wrong
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
