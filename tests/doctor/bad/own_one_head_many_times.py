# case: own
# class: MultiHead
# kwargs: {"d": 24, "n": 3}
# expect: reach, gqa, gradients
# where: any
# fix: self.heads = nn.ModuleList([Head(d, d // n) for _ in range(n)])
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, h), nn.Linear(d, h), nn.Linear(d, h)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.softmax(q / k.size(-1) ** 0.5 @ k.transpose(1, 2), -1) @ v


class MultiHead(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.heads = nn.ModuleList([Head(d, d // n)] * n)  # wrong
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
