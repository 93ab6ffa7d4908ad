# case: own
# class: MultiHeadAttention
# kwargs: {"n_embd": 24, "n_head": 3}
# expect: reach, permutation
# where: any
# fix: out = torch.cat([h(x) for h in self.heads], dim=2)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, n_embd, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(n_embd, size, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x) * self.q.out_features ** -0.5, self.k(x), self.v(x)
        return F.softmax(q @ k.transpose(1, 2), dim=2) @ v


class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.heads = nn.ModuleList(Head(n_embd, n_embd // n_head) for _ in range(n_head))
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=1).view(x.size(0), x.size(1), -1)  # wrong
        return self.proj(out)
