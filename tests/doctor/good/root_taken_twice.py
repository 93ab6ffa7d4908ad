# class: QKVAttention
# kwargs: {"channels": 32, "n_heads": 4}
# probe: m(x)
import math

import torch as th
import torch.nn as nn


class QKVAttention(nn.Module):
    """Attention as in guided-diffusion, on (batch, tokens, channels)."""

    def __init__(self, channels, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(channels, channels * 3)
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x):
        bs, length, width = x.shape
        ch = width // self.n_heads
        q, k, v = self.qkv(x).transpose(1, 2).chunk(3, dim=1)
        scale = 1 / math.sqrt(math.sqrt(ch))
        weight = th.einsum(
            "bct,bcs->bts",
            (q * scale).reshape(bs * self.n_heads, ch, length),
            (k * scale).reshape(bs * self.n_heads, ch, length),
        )  # More stable with f16 than dividing afterwards
        weight = th.softmax(weight.float(), dim=-1).type(weight.dtype)
        a = th.einsum("bts,bcs->bct", weight, v.reshape(bs * self.n_heads, ch, length))
        return self.proj_out(a.reshape(bs, -1, length).transpose(1, 2))
