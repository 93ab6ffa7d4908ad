# class: SelfAttention
# kwargs: {"dim": 24, "heads": 4, "p": 0.3}
# probe: m(x)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.drop = nn.Dropout(p)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = self.qkv(x).reshape(B, S, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)
        q = q / (E // self.heads) ** 0.5
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        y = self.drop(y)
        return self.out(y.transpose(1, 2).reshape(B, S, E))
