# case: SD-02
# class: SelfAttention
# kwargs: {"in_dim": 24, "heads": 3}
# expect: batch_independence, row_sums
# fix: self.softmax = nn.Softmax(dim=-1)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, in_dim, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(in_dim, in_dim)
        self.key = nn.Linear(in_dim, in_dim)
        self.value = nn.Linear(in_dim, in_dim)
        self.softmax = nn.Softmax(dim=0)  # wrong

    def forward(self, x):
        b, s, e = x.shape
        q = self.query(x).view(b, s, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(b, s, self.heads, -1).transpose(1, 2)
        v = self.value(x).view(b, s, self.heads, -1).transpose(1, 2)
        attention = self.softmax(q @ k.transpose(-1, -2) / q.size(-1) ** 0.5)  # wrong: dim 0 is the batch
        return (attention @ v).transpose(1, 2).reshape(b, s, e)
