# class: LlamaAttention
# kwargs: {"dim": 32, "n_heads": 4, "n_kv_heads": 2}
# options: causal=true
# by_design: permutation
# may_warn: fully_masked, half_precision
# causal: true
# positions: true
# probe: m(x)
import math

import torch
import torch.nn as nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def repeat_kv(x, n_rep):
    """(B, n_kv_heads, S, D) -> (B, n_kv_heads * n_rep, S, D)"""
    b, h, s, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(b, h, n_rep, s, d).reshape(b, h * n_rep, s, d)


class LlamaAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads=None, rope_theta=10000.0):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        self.head_dim = dim // n_heads
        self.n_rep = self.n_heads // self.n_kv_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        inv_freq = 1.0 / (rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, start, length, dtype):
        t = torch.arange(start, start + length, device=self.inv_freq.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype), emb.sin().to(dtype)

    def forward(self, x, past_key_value=None, use_cache=False):
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim).transpose(1, 2)

        past_len = 0 if past_key_value is None else past_key_value[0].shape[2]
        cos, sin = self.rope(past_len, seqlen, q.dtype)
        q, k = apply_rotary(q, k, cos, sin)

        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        present = (k, v) if use_cache else None

        k = repeat_kv(k, self.n_rep)
        v = repeat_kv(v, self.n_rep)

        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        total = past_len + seqlen
        mask = torch.full((seqlen, total), torch.finfo(scores.dtype).min, dtype=scores.dtype, device=x.device)
        mask = mask.triu(diagonal=past_len + 1)
        scores = scores + mask
        weights = torch.softmax(scores.float(), dim=-1).to(q.dtype)
        out = torch.matmul(weights, v)
        out = out.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out), present
