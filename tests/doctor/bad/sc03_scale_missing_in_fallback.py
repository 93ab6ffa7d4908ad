# case: SC-03
# class: Attention
# kwargs: {"dim": 64, "heads": 4}
# expect: scale, padding
# fix: attn = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, return_weights=False):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = None
        if return_weights:
            attn = q @ k.transpose(-2, -1)  # wrong
            attn = attn.softmax(dim=-1)
            y = attn @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = self.proj(y.transpose(1, 2).reshape(B, N, C))
        return (y, attn) if return_weights else y
