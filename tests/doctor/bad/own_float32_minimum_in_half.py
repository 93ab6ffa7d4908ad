# case: own
# class: CausalSelfAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: half_precision
# fix: scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        hide = torch.triu(torch.ones(n, n, device=x.device), 1).bool()
        scores = scores.masked_fill(hide, torch.finfo(torch.float32).min)  # wrong
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))
