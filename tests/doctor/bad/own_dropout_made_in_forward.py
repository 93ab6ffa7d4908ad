# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "heads": 2, "p_drop": 0.2}
# expect: determinism
# fix: p = nn.functional.dropout(p, self.p_drop, self.training)
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, p_drop):
        super().__init__()
        self.heads, self.p_drop = heads, p_drop
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = torch.softmax(q / q.size(-1) ** 0.5 @ k.transpose(-2, -1), dim=-1)
        p = nn.Dropout(self.p_drop)(p)  # wrong
        return self.out((p @ v).transpose(1, 2).reshape(b, s, e))
