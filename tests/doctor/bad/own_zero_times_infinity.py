# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "num_heads": 3}
# expect: padding
# fix: attn = attn.masked_fill(mask[:, None, None, :] == 0, torch.finfo(attn.dtype).min)
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """mask: (B, N), 1 keep, 0 drop"""
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
        if mask is not None:
            attn = attn + (1 - mask[:, None, None, :].to(attn.dtype)) * float("-inf")  # wrong
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))
