# class: Head
# kwargs: {"n_embd": 20, "head_size": 12}
# may_warn: half_precision
# probe: m(x)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = F.softmax(q @ k.transpose(1, 2) / k.size(-1) ** 0.5, dim=-1)
        return wei @ v
