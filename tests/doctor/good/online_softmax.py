# class: FlashAttention
# kwargs: {"dim": 16, "heads": 2, "block": 4}
# by_design: permutation
# causal: true
# options: causal=true
# probe: m(x)
import torch
from torch import nn


class FlashAttention(nn.Module):
    """The tiled forward pass of FlashAttention in plain PyTorch, causal."""

    def __init__(self, dim, heads, block):
        super().__init__()
        self.heads, self.block = heads, block
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q = q * self.scale
        out = []
        for i in range(0, n, self.block):
            qi = q[:, :, i:i + self.block]
            rows = torch.arange(i, min(i + self.block, n), device=x.device)
            o = torch.zeros_like(qi)
            l = qi.new_zeros(*qi.shape[:-1], 1)
            m = qi.new_full((*qi.shape[:-1], 1), -1e4 if qi.dtype == torch.float16 else -1e30)
            for j in range(0, i + self.block, self.block):
                kj, vj = k[:, :, j:j + self.block], v[:, :, j:j + self.block]
                cols = torch.arange(j, j + kj.shape[2], device=x.device)
                if kj.shape[2] == 0:
                    continue
                hidden = cols[None, :] > rows[:, None]
                s = (qi @ kj.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                p = torch.exp(s - m_new)
                alpha = torch.exp(m - m_new)
                l = l * alpha + p.sum(-1, keepdim=True)
                o = o * alpha + p @ vj
                m = m_new
            out.append(o / l)
        y = torch.cat(out, dim=2).transpose(1, 2).reshape(b, n, e)
        return self.proj(y)
