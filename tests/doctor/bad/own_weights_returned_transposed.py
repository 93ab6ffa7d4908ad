# case: own
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: row_sums
# fix: return self.o((w @ v).transpose(1, 2).reshape(b, s, e)), w
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        """Returns the output and the weights (batch, heads, queries, keys)."""
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q / q.size(-1) ** 0.5 @ k.mT, dim=-1)
        return self.o((w @ v).transpose(1, 2).reshape(b, s, e)), w.transpose(2, 3)  # wrong
