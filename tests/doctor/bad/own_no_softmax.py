# case: own
# class: DotProductAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# expect: row_sums, constant_values, scale
# where: any
# fix: weights = torch.softmax(torch.matmul(q / (e // self.num_heads) ** 0.5, k.transpose(2, 3)), dim=-1)
import torch
import torch.nn as nn


class DotProductAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, e = x.shape
        q = self.query(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        k = self.key(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        v = self.value(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        weights = torch.matmul(q / (e // self.num_heads) ** 0.5, k.transpose(2, 3))  # wrong
        y = torch.matmul(weights, v)  # wrong: weights are scores
        return self.output(y.transpose(1, 2).reshape(b, n, e))
