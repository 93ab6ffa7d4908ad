# class: MultiQueryAttention
# kwargs: {"d_model": 30, "n_heads": 5}
# probe: m(x, mask=keep)
import torch
from torch import nn
from torch.nn import functional as F


class MultiQueryAttention(nn.Module):
    """One key head and one value head, shared by all query heads (Shazeer, 2019)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, d_model + 2 * self.head_dim)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, S, E = x.shape
        q, k, v = self.Wqkv(x).split([E, self.head_dim, self.head_dim], dim=-1)
        q = q.view(B, S, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = k.unsqueeze(1), v.unsqueeze(1)
        if mask is not None:
            mask = mask.view(B, 1, 1, S).bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).contiguous().view(B, S, E))
