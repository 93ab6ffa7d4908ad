# class: SelfAttention
# kwargs: {"width": 32, "heads": 2}
# may_warn: fully_masked, half_precision
# probe: m(x)
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).type_as(x)


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.dh = heads, width // heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = RMSNorm(self.dh), RMSNorm(self.dh)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x, attn_mask=None):
        b, s, _ = x.shape
        q = self.q_norm(self.q(x).view(b, s, self.heads, self.dh)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(b, s, self.heads, self.dh)).transpose(1, 2)
        v = self.v(x).view(b, s, self.heads, self.dh).transpose(1, 2)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.dh ** -0.5
        if attn_mask is not None:
            logits = logits + attn_mask
        probs = torch.nn.functional.softmax(logits, dim=-1)
        return self.o(torch.einsum("bhij,bhjd->bihd", probs, v).reshape(b, s, -1))
