# class: AttentionBlock
# kwargs: {"d_model": 24, "n_heads": 4}
# probe: m(x, ~keep)
# may_warn: fully_masked
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionBlock(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(d_model)
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, pad_mask=None):
        """pad_mask: (B, S) bool, True where padded"""
        h = self.norm(x)
        B, S, E = h.shape
        q = self.q_proj(h).view(B, S, self.n_heads, -1).transpose(1, 2)
        k = self.k_proj(h).view(B, S, self.n_heads, -1).transpose(1, 2)
        v = self.v_proj(h).view(B, S, self.n_heads, -1).transpose(1, 2)
        mask = None if pad_mask is None else ~pad_mask[:, None, None, :]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.dropout(self.out_proj(a.transpose(1, 2).reshape(B, S, E)))
