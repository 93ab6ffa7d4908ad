# case: own
# class: CausalAttention
# kwargs: {"width": 24, "heads": 3}
# expect: causality
# fix: future = torch.triu(torch.ones(n, n, device=x.device), diagonal=1).bool()
import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = (q / (w // self.heads) ** 0.5) @ k.transpose(-2, -1)
        future = torch.triu(torch.ones(n, n, device=x.device)).bool()  # wrong
        s = s.masked_fill(future, torch.finfo(s.dtype).min)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))
