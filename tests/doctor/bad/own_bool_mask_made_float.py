# case: own
# class: CausalSelfAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: causality
# fix: mask = torch.tril(torch.ones(S, S, device=x.device)).bool()
import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = torch.tril(torch.ones(S, S, device=x.device)).to(x.dtype)  # wrong
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, S, E))
