# class: MultiHeadLatentAttention
# kwargs: {"d_model": 32, "n_heads": 4, "kv_rank": 12, "d_nope": 8, "d_rope": 4, "d_v": 6}
# options: causal=true
# by_design: permutation
# may_warn: half_precision
# causal: true
# positions: true
# probe: m(x)
import torch
import torch.nn as nn


def rope(x, theta=10000.0):
    *_, s, d = x.shape
    inv = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    angle = torch.outer(torch.arange(s, device=x.device).float(), inv)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek-V2's attention: keys and values come out of one small latent; one rotary key for all heads."""

    def __init__(self, d_model, n_heads, kv_rank, d_nope, d_rope, d_v):
        super().__init__()
        self.n_heads, self.d_nope, self.d_rope, self.d_v = n_heads, d_nope, d_rope, d_v
        self.wq = nn.Linear(d_model, n_heads * (d_nope + d_rope), bias=False)
        self.wkv_a = nn.Linear(d_model, kv_rank + d_rope, bias=False)
        self.kv_norm = nn.LayerNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (d_nope + d_v), bias=False)
        self.wo = nn.Linear(n_heads * d_v, d_model, bias=False)
        self.softmax_scale = (d_nope + d_rope) ** -0.5

    def forward(self, x):
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2)
        q_nope, q_pe = q.split([self.d_nope, self.d_rope], dim=-1)
        kv, k_pe = self.wkv_a(x).split([self.wkv_a.out_features - self.d_rope, self.d_rope], dim=-1)
        kv = self.wkv_b(self.kv_norm(kv)).view(b, s, self.n_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.d_nope, self.d_v], dim=-1)
        k_pe = rope(k_pe.unsqueeze(1)).expand(-1, self.n_heads, -1, -1)
        q = torch.cat((q_nope, rope(q_pe)), dim=-1) * self.softmax_scale
        k = torch.cat((k_nope, k_pe), dim=-1)
        scores = q @ k.mT
        scores = scores + torch.full((s, s), torch.finfo(scores.dtype).min, dtype=scores.dtype, device=x.device).triu(1)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
