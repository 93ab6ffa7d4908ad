# case: own
# class: CausalSelfAttention
# kwargs: {"d_model": 24, "num_heads": 4}
# expect: causality
# where: any
# fix: allowed = self.tril[:, :, :T, :T]
import math

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_len=64):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.proj = (nn.Linear(d_model, d_model) for _ in range(4))
        self.register_buffer("tril", torch.tril(torch.ones(1, 1, max_len, max_len)))

    def forward(self, x):
        B, T, C = x.size()
        split = lambda t: t.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        att = q / math.sqrt(C // self.num_heads) @ k.transpose(-2, -1)
        allowed = self.tril[:, :, -T:, :T]  # wrong
        att = att.masked_fill(allowed == 0, float("-inf")).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))
