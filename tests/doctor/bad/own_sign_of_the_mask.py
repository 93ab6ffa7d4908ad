# case: own
# class: SelfAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: padding
# where: any
# fix: scores = scores - (1 - mask[:, None, None, :].to(scores.dtype)) * 1e4 * 1e5
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        """mask: (batch, tokens), 1.0 for real tokens, 0.0 for padding"""
        b, s, e = x.shape
        q, k, v = (f(x).view(b, s, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q / q.size(-1) ** 0.5 @ k.mT
        if mask is not None:
            scores = scores - mask[:, None, None, :].to(scores.dtype) * 1e9  # wrong
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
