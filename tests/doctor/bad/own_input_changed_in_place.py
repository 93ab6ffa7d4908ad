# case: own
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: determinism, gradients, reach
# fix: x = x - x.mean(dim=-1, keepdim=True)
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        x -= x.mean(dim=-1, keepdim=True)  # wrong
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q / q.size(-1) ** 0.5 @ k.mT, dim=-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, s, e))
