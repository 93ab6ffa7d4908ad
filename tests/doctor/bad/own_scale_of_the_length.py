# case: own
# class: SelfAttention
# kwargs: {"d_model": 48, "heads": 3}
# expect: scale
# fix: scores = torch.matmul(q / math.sqrt(q.size(-1)), k)
import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q_lin, self.k_lin, self.v_lin, self.o_lin = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, s, e = x.shape
        q = self.q_lin(x).view(b, s, self.heads, -1).permute(0, 2, 1, 3)
        k = self.k_lin(x).view(b, s, self.heads, -1).permute(0, 2, 3, 1)
        v = self.v_lin(x).view(b, s, self.heads, -1).permute(0, 2, 1, 3)
        scores = torch.matmul(q / math.sqrt(k.size(-1)), k)  # wrong
        out = torch.matmul(scores.softmax(-1), v)
        return self.o_lin(out.permute(0, 2, 1, 3).reshape(b, s, e))
