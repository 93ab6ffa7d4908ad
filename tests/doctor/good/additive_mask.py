# class: Attention
# kwargs: {"embed_dim": 24, "num_heads": 2}
# may_warn: fully_masked
# probe: m(x, attn_mask=torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))[:, None, None, :])
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(embed_dim, embed_dim * 3)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None):
        """attn_mask: float, broadcastable to (B, H, S, S), added to the scores: 0 = attend, -inf = ignore."""
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.num_heads, E // self.num_heads).permute(2, 0, 3, 1, 4)
        if attn_mask is not None:
            attn_mask = attn_mask.to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, self.dropout if self.training else 0.0)
        return self.out(out.transpose(1, 2).reshape(B, S, E))
