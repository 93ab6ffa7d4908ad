# case: MV-08
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: padding
# fix: dots = dots.masked_fill(~mask, mask_value)
import torch
from einops import rearrange
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        h = self.heads
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=h), (q, k, v))
        dots = einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        mask_value = -torch.finfo(dots.dtype).max
        if mask is not None:
            mask = rearrange(mask, 'b j -> b () () j')
            dots.masked_fill(~mask, mask_value)  # wrong
        attn = dots.softmax(dim=-1)
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
