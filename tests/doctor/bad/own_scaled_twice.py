# case: own
# class: Attention
# kwargs: {"dim": 64, "num_heads": 4}
# expect: scale
# fix: pass
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q = q * self.scale  # wrong
        x = F.scaled_dot_product_attention(q, k, v)  # wrong: divides by sqrt(head_dim) as well
        return self.proj(x.transpose(1, 2).reshape(B, N, C))
