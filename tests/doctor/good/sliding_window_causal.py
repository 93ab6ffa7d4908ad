# class: SlidingWindowAttention
# kwargs: {"hidden_size": 24, "num_heads": 3, "window": 4}
# options: causal=true
# by_design: permutation, reach
# may_warn: half_precision
# causal: true
# window: 4
# probe: m(x)
import torch
import torch.nn as nn


class SlidingWindowAttention(nn.Module):
    """Each token sees itself and the window - 1 tokens before it."""

    def __init__(self, hidden_size, num_heads, window):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.window = window
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (t.view(b, s, self.num_heads, self.head_dim).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        i = torch.arange(s, device=x.device)
        distance = i[:, None] - i[None, :]
        allowed = (distance >= 0) & (distance < self.window)
        scores = q @ k.transpose(-1, -2) / self.head_dim ** 0.5
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, s, e))
