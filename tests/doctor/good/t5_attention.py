# class: T5Attention
# kwargs: {"d_model": 32, "d_kv": 8, "num_heads": 4}
# by_design: permutation, scale
# may_warn: half_precision
# positions: true
# probe: m(x, mask=keep)
import math

import torch
from torch import nn


class T5Attention(nn.Module):
    def __init__(self, d_model, d_kv, num_heads, num_buckets=32, max_distance=128, bidirectional=True):
        super().__init__()
        self.n_heads = num_heads
        self.key_value_proj_dim = d_kv
        self.inner_dim = num_heads * d_kv
        self.num_buckets, self.max_distance, self.bidirectional = num_buckets, max_distance, bidirectional
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _bucket(self, relative_position):
        buckets = 0
        num_buckets = self.num_buckets
        if self.bidirectional:
            num_buckets //= 2
            buckets += (relative_position > 0).long() * num_buckets
            relative_position = relative_position.abs()
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact) * (num_buckets - max_exact)
        ).long()
        large = large.clamp(max=num_buckets - 1)
        return buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, q_len, k_len, device):
        rel = torch.arange(k_len, device=device)[None, :] - torch.arange(q_len, device=device)[:, None]
        return self.relative_attention_bias(self._bucket(rel)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, key_value_states=None):
        kv = hidden_states if key_value_states is None else key_value_states
        b, n = hidden_states.shape[:2]
        split = lambda t: t.view(b, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
        q, k, v = split(self.q(hidden_states)), split(self.k(kv)), split(self.v(kv))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(n, kv.shape[1], q.device)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, self.inner_dim)
        return self.o(out)
