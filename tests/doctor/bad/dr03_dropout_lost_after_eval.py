# case: DR-03
# class: Attention
# kwargs: {"dim": 24, "heads": 3, "dropout": 0.5}
# expect: mode_round_trip
# fix: pass
# fix: y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_p if self.training else 0.0)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout_p = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if not self.training:
            self.dropout_p = 0.0  # wrong
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_p)  # wrong
        return self.proj(y.transpose(1, 2).reshape(B, N, C))
