# class: LocalAttention
# kwargs: {"dim": 24, "heads": 3, "radius": 2}
# by_design: permutation, reach
# window: 3
# probe: m(x)
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Every token attends to its neighbours within a radius, on both sides."""

    def __init__(self, dim, heads, radius):
        super().__init__()
        self.heads, self.radius = heads, radius
        self.to_qkv = nn.Linear(dim, dim * 3)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        B, L, C = x.shape
        q, k, v = self.to_qkv(x).view(B, L, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        pos = torch.arange(L, device=x.device)
        near = (pos[:, None] - pos[None, :]).abs() <= self.radius
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.to_out(y.transpose(1, 2).flatten(2))
