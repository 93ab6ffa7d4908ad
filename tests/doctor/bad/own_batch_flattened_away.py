# case: own
# class: MultiHeadAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: batch_independence
# fix: q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
# fix: y = (w @ v).transpose(1, 2).reshape(b, s, e)
import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (f(x).view(-1, self.heads, e // self.heads).transpose(0, 1) for f in (self.q, self.k, self.v))  # wrong
        w = torch.softmax(q * (e // self.heads) ** -0.5 @ k.transpose(-1, -2), dim=-1)
        y = (w @ v).transpose(0, 1).reshape(b, s, e)  # wrong
        return self.o(y)
