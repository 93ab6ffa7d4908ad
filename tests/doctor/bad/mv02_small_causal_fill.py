# case: MV-02
# class: Attention
# kwargs: {"nx": 24, "n_head": 3}
# options: causal=true
# expect: causality
# fix: w = torch.where(b.bool(), w, torch.finfo(w.dtype).min)
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, nx, n_head, n_ctx=64):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))
        self.n_head = n_head
        self.c_attn = nn.Linear(nx, nx * 3)
        self.c_proj = nn.Linear(nx, nx)

    def _attn(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / v.size(-1) ** 0.5
        b = self.bias[:, :, : w.size(-2), : w.size(-1)]
        w = w * b - 1e4 * (1 - b)  # wrong
        return torch.matmul(nn.functional.softmax(w, dim=-1), v)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, self.n_head, -1).transpose(1, 2) for h in self.c_attn(x).split(c, dim=2))
        a = self._attn(q, k, v)
        return self.c_proj(a.transpose(1, 2).contiguous().view(b, t, c))
