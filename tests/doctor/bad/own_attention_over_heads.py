# case: own
# class: SelfAttention
# kwargs: {"d_model": 24, "n_heads": 4}
# expect: reach
# fix: q, k, v = (t.view(b, s, self.n_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
# fix: return self.out((a @ v).transpose(1, 2).reshape(b, s, e))
import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (t.view(b, s, self.n_heads, -1) for t in self.qkv(x).chunk(3, dim=-1))  # wrong
        a = torch.softmax(q / math.sqrt(q.size(-1)) @ k.transpose(-2, -1), dim=-1)
        return self.out((a @ v).reshape(b, s, e))  # wrong
