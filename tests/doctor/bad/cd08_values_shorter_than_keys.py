# case: CD-08
# class: Attention
# kwargs: {"dim": 24, "num_heads": 3}
# expect: reach
# where: any
# fix: v = kv[:, :, 1]
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q = self.q(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)
        kv = self.kv(x).reshape(B, N, 2, self.num_heads, -1)
        k = kv[:, :, 0]
        v = kv[:, :-1, 1]  # wrong
        out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2))
        return self.proj(out.transpose(1, 2).reshape(B, N, C))
