# case: own
# class: SelfAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: row_sums, constant_values
# fix: w = s.softmax(dim=-1)
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = (q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2)
        w = s.flatten(2).softmax(dim=-1).view_as(s)  # wrong
        return self.out((w @ v).transpose(1, 2).flatten(2))
