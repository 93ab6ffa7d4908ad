# class: Attention
# kwargs: {"features": 24, "num_heads": 4}
# may_warn: half_precision
# probe: m(x, x)
from functools import partial

import torch
import torch.nn as nn


class DenseGeneral(nn.Module):
    def __init__(self, features, heads, head_dim):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(features, heads, head_dim) * features ** -0.5)

    def forward(self, x):
        return torch.tensordot(x, self.kernel, dims=([2], [0]))


class Attention(nn.Module):
    """MultiHeadDotProductAttention of flax, ported."""

    def __init__(self, features, num_heads):
        super().__init__()
        dense = partial(DenseGeneral, features, num_heads, features // num_heads)
        self.query, self.key, self.value = dense(), dense(), dense()
        self.out = nn.Linear(features, features)

    def forward(self, inputs_q, inputs_kv):
        query, key, value = self.query(inputs_q), self.key(inputs_kv), self.value(inputs_kv)
        query = query / query.shape[-1] ** 0.5
        attn = torch.einsum("...qhd,...khd->...hqk", query, key)
        attn = torch.nn.functional.softmax(attn, dim=-1)
        x = torch.einsum("...hqk,...khd->...qhd", attn, value)
        return self.out(x.flatten(-2))
