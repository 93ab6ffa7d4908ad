# case: WR-02
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# expect: scale, row_sums, gradients
# fix: out = weights @ v
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledDotProduct(nn.Module):
    def forward(self, q, k):
        return F.softmax(torch.matmul(q / math.sqrt(q.size(-1)), k.transpose(-2, -1)), dim=-1)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.score = ScaledDotProduct()
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (w(x).view(b, s, self.num_heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        weights = self.score(q, k)
        out = F.softmax(weights, dim=-1) @ v  # wrong
        return self.o(out.transpose(1, 2).reshape(b, s, e))
