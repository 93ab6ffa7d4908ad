# case: HS-05
# class: SelfAttention
# kwargs: {"dim": 32, "num_heads": 4}
# expect: reach
# fix: out = out.transpose(1, 2).reshape(b, s, e)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).reshape(b, s, 3, self.num_heads, e // self.num_heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1)
        out = weights @ v
        out = out.transpose(1, 2).view(b, s, e)  # wrong
        return self.proj(out)
