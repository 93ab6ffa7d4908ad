# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "heads": 2}
# expect: padding, batch_independence
# where: any
# fix: attn_mask = keep[:, None, None, :]
import torch
from torch import nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        """keep: (B, S) bool, True = token"""
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn_mask = None
        if keep is not None:
            attn_mask = keep[0].expand(s, s)  # wrong
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out(y.transpose(1, 2).reshape(b, s, e))
