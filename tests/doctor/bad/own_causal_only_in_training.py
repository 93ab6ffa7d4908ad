# case: own
# class: Attention
# kwargs: {"dim": 24, "num_heads": 3}
# options: causal=true
# expect: causality
# where: any
# fix: y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)  # wrong
        return self.proj(y.transpose(1, 2).reshape(B, N, C))
