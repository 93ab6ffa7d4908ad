# class: Attention
# kwargs: {"dim": 24, "heads": 3, "dropout": 0.1}
# options: causal=true
# by_design: permutation
# may_warn: fully_masked, half_precision
# causal: true
# probe: m(x)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, return_attention=False):
        B, T, C = x.shape
        q, k, v = (t.reshape(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        attn = None
        if return_attention:
            attn = q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5
            attn = attn + torch.full((T, T), float("-inf"), dtype=attn.dtype, device=x.device).triu(1)
            attn = attn.softmax(-1)
            y = F.dropout(attn, self.dropout, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout * self.training, is_causal=True)
        y = self.proj(y.transpose(1, 2).reshape(B, T, C))
        return (y, attn) if return_attention else y
