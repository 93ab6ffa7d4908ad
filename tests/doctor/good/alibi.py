# class: AlibiAttention
# kwargs: {"d_model": 32, "num_heads": 8}
# options: causal=true
# by_design: permutation
# may_warn: fully_masked, half_precision
# causal: true
# probe: m(x)
import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = math.sqrt(d_model // num_heads)
        self.register_buffer("m", torch.tensor(get_slopes(num_heads)).view(1, num_heads, 1, 1))
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        batch_size, seq_len, _ = x.shape
        key, query, value = self.kqv(x).chunk(3, dim=-1)
        key = key.view(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        query = query.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        value = value.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)

        r = torch.arange(seq_len, device=x.device)
        bias = self.m * (r[None, :] - r[:, None])
        score = torch.matmul(query, key) / self.scale + bias.to(x.dtype)
        mask = torch.tril(torch.ones(seq_len, seq_len, device=x.device)) == 0
        score = score.masked_fill(mask, float("-inf"))
        attn = score.softmax(dim=-1)
        out = torch.matmul(attn, value)
        out = out.transpose(1, 2).reshape(batch_size, seq_len, -1)
        return self.out(out)
