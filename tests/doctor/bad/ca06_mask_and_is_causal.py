# case: CA-06
# class: CausalAttention
# kwargs: {"dim": 24, "heads": 3, "dropout": 0.1}
# expect: padding, causality, row_sums, determinism, mode_round_trip
# fix: out = F.scaled_dot_product_attention(q, k, v, attn_mask=tri if keep is None else keep & tri, dropout_p=self.dropout if self.training else 0.0)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, attention_mask=None):
        """attention_mask: (B, S), 1 = token, 0 = padding"""
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        keep = None if attention_mask is None else attention_mask[:, None, None, :].bool().expand(B, 1, S, S)
        tri = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=self.dropout if self.training else 0.0, is_causal=True)  # wrong
        return self.proj(out.transpose(1, 2).reshape(B, S, E))
