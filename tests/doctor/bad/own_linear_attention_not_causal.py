# case: own
# class: CausalLinearAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: causality
# where: any
# fix: kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
# fix: z = 1 / (torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(dim=2)) + 1e-6)
# fix: y = torch.einsum("bhnd,bhnde,bhn->bhne", q, kv, z)
import torch
import torch.nn.functional as F
from torch import nn


class CausalLinearAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->bhde", k, v)  # wrong
        z = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)) + 1e-6)  # wrong
        y = torch.einsum("bhnd,bhde,bhn->bhne", q, kv, z)  # wrong
        return self.out(y.transpose(1, 2).reshape(b, n, e))
