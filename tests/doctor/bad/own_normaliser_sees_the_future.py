# case: own
# class: CausalLinearAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: causality
# where: any
# fix: z = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(dim=2))
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))  # wrong
        y = torch.einsum("bhnd,bhnde->bhne", q, kv) / (z.unsqueeze(-1) + 1e-6)
        return self.out(y.transpose(1, 2).reshape(b, n, e))
