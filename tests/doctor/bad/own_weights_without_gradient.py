# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: gradients
# fix: if True:
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        with torch.no_grad():  # wrong
            attn = torch.softmax(q / (e // self.heads) ** 0.5 @ k.transpose(-2, -1), dim=-1)
        return self.o((attn @ v).transpose(1, 2).reshape(b, s, e))
