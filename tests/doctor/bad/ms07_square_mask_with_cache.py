# case: MS-07
# class: CausalAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# options: causal=true
# expect: decode
# where: any
# fix: mask = torch.full((T, k.size(2)), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device).triu(1 + k.size(2) - T)
import math

import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def forward(self, x, past_kv=None):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        if past_kv is not None:
            k = torch.cat([past_kv[0], k], dim=2)
            v = torch.cat([past_kv[1], v], dim=2)
        att = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)
        mask = torch.full((k.size(2), k.size(2)), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device).triu(1)[:T]  # wrong
        att = att + mask
        y = att.softmax(-1) @ v
        y = self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return y, (k, v)
