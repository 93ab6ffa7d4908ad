# case: CD-05
# class: CrossAttention
# kwargs: {"d_model": 24, "n_heads": 2}
# expect: cross_attention, padding
# fix: mask = key_padding_mask.view(B, 1, 1, Sk)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, key_padding_mask=None):
        """key_padding_mask: bool (B, Sk), True = keep."""
        B, Sq, E = query.shape
        Sk = key.shape[1]
        q = self.q(query).view(B, Sq, self.n_heads, -1).transpose(1, 2)
        k = self.k(key).view(B, Sk, self.n_heads, -1).transpose(1, 2)
        v = self.v(value).view(B, Sk, self.n_heads, -1).transpose(1, 2)
        mask = None
        if key_padding_mask is not None:
            mask = key_padding_mask.view(B, 1, 1, Sq)  # wrong
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(out.transpose(1, 2).reshape(B, Sq, E))
