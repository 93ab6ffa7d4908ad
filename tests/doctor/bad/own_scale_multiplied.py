# case: own
# class: SelfAttention
# kwargs: {"dim": 64, "heads": 4}
# expect: scale
# fix: scores = q / math.sqrt(self.head_dim) @ k.transpose(-2, -1)
import math

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q * math.sqrt(self.head_dim) @ k.transpose(-2, -1)  # wrong
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
