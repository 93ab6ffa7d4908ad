# case: own
# class: Attention
# kwargs: {"dim": 48, "heads": 3}
# expect: scale
# fix: a = torch.softmax(q / self.head_dim ** 0.5 @ k.transpose(-2, -1), dim=-1)
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q / self.head_dim @ k.transpose(-2, -1), dim=-1)  # wrong
        return self.out((a @ v).transpose(1, 2).reshape(b, s, e))
