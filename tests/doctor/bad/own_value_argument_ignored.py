# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# expect: cross_attention, constant_values, reach, gradients
# where: any
# fix: v = self.split(self.W_v(value))
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, -1).transpose(1, 2)

    def forward(self, query, key, value):
        q, k = self.split(self.W_q(query)), self.split(self.W_k(key))
        v = self.split(self.W_v(key))  # wrong
        w = torch.softmax(q / q.size(-1) ** 0.5 @ k.transpose(2, 3), dim=-1)
        return self.W_o((w @ v).transpose(1, 2).reshape(query.size(0), query.size(1), -1))
