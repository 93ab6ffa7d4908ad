# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "n_heads": 4}
# expect: row_sums, constant_values
# fix: attn = torch.softmax(torch.bmm(q / q.size(-1) ** 0.5, k.transpose(1, 2)), dim=2)
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def fold(self, t):
        b, s, e = t.shape
        return t.view(b, s, self.n_heads, -1).transpose(1, 2).reshape(b * self.n_heads, s, -1)

    def forward(self, query, key, value):
        b, s, e = query.shape
        q, k, v = self.fold(self.q(query)), self.fold(self.k(key)), self.fold(self.v(value))
        attn = torch.softmax(torch.bmm(q / q.size(-1) ** 0.5, k.transpose(1, 2)), dim=1)  # wrong
        y = torch.bmm(attn, v).view(b, self.n_heads, s, -1).transpose(1, 2).reshape(b, s, e)
        return self.o(y), attn.view(b, self.n_heads, s, -1)
