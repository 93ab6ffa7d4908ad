# case: DR-01
# class: Attention
# kwargs: {"dim": 24, "heads": 3, "dropout": 0.3}
# expect: determinism
# fix: y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)  # wrong
        return self.proj(y.transpose(1, 2).reshape(B, N, C))
