# class: Attention
# kwargs: {"dim": 28, "heads": 2, "dim_head": 16, "causal": True}
# by_design: permutation
# may_warn: fully_masked, half_precision
# causal: true
# probe: m(x, mask=keep)
import torch
from einops import rearrange
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, causal=False):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, mask=None):
        n, device = x.shape[1], x.device
        q, k, v = rearrange(self.to_qkv(x), 'b n (three h d) -> three b h n d', three=3, h=self.heads)
        dots = einsum('bhid,bhjd->bhij', q, k) * self.scale
        mask_value = -torch.finfo(dots.dtype).max
        if mask is not None:
            pair = rearrange(mask, 'b i -> b 1 i 1') * rearrange(mask, 'b j -> b 1 1 j')
            dots = dots.masked_fill(~pair, mask_value)
        if self.causal:
            i, j = torch.ones(n, n, device=device).triu_(1).nonzero(as_tuple=True)
            dots[:, :, i, j] = mask_value
        attn = dots.softmax(dim=-1)
        out = einsum('bhij,bhjd->bhid', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
