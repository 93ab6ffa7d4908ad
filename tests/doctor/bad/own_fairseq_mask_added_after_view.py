# case: own
# class: MultiheadAttention
# kwargs: {"embed_dim": 24, "num_heads": 3}
# options: batch_first=false
# expect: padding, batch_independence
# fix: attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
# fix: attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
import torch
import torch.nn.functional as F
from torch import nn


class MultiheadAttention(nn.Module):
    """Input shape: Time x Batch x Channel"""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None):
        """key_padding_mask: (batch, src_len), True at padding"""
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        q = (self.q_proj(query) * self.scaling).view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(key).view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(value).view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(self.num_heads, bsz, tgt_len, src_len)  # wrong
            attn_weights = attn_weights.masked_fill(key_padding_mask[None, :, None, :], float("-inf"))  # wrong
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn = torch.bmm(F.softmax(attn_weights, dim=-1), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)
