# case: own
# class: Attention
# kwargs: {"dim": 20, "heads": 4}
# expect: row_sums, constant_values
# fix: attn = F.softmax(q / q.size(-1) ** 0.5 @ k.transpose(-2, -1), dim=-1)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.softmax(q / q.size(-1) ** 0.5 @ k.transpose(-2, -1))  # wrong
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, e))
