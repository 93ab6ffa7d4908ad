# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "h": 3}
# expect: cross_attention
# fix: out = (p @ v).transpose(1, 2).reshape(B, Sq, -1)
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        B, Sq, E = query.shape
        Sk = key.shape[1]
        q = self.q(query).view(B, Sq, self.h, -1).transpose(1, 2) * (E // self.h) ** -0.5
        k = self.k(key).view(B, Sk, self.h, -1).transpose(1, 2)
        v = self.v(value).view(B, Sk, self.h, -1).transpose(1, 2)
        p = torch.softmax(q @ k.transpose(2, 3), dim=-1)
        out = (p @ v).transpose(1, 2).reshape(B, Sk, -1)  # wrong
        return self.o(out)
