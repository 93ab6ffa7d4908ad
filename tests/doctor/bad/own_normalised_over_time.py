# case: own
# class: CausalCosineAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: causality
# where: any
# fix: q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalCosineAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), 10.0))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=2), F.normalize(k, dim=2)  # wrong
        a = (q @ k.mT) * self.logit_scale
        a = a.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), torch.finfo(a.dtype).min)
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))
