# case: own
# class: Attention
# kwargs: {"dim": 64, "heads": 4}
# expect: scale
# fix: self.scale = self.dh ** -0.5
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.dh = heads, dim // heads
        self.scale = self.dh ** -1/2  # wrong
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.h, self.dh).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q * self.scale @ k.mT, -1)  # wrong: scale is 1 / (2 D)
        return self.o((a @ v).transpose(1, 2).reshape(b, s, e))
