# class: Attention
# kwargs: {"dim": 24, "heads": 4}
# may_warn: half_precision
# probe: m(x)
import torch
from einops import rearrange
from torch import nn


class Attention(nn.Module):
    """Heads are the fast axis of the channels, in and out."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = rearrange(self.to_qkv(x), 'b n (k d h) -> k b h n d', k=3, h=self.heads)
        w = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return self.to_out(rearrange(w @ v, 'b h n d -> b n (d h)'))
