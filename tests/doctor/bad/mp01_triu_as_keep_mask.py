# case: MP-01
# class: CausalSelfAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: causality
# fix: mask = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = torch.triu(torch.ones(S, S, device=x.device), diagonal=1).bool()  # wrong
        y = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(y.transpose(1, 2).flatten(2))
