# class: PerceiverAttention
# kwargs: {"dim": 24, "dim_head": 6, "heads": 4}
# may_warn: half_precision
# cross: 24
# no_permutation: true
# probe: m(y, x)
import torch
from einops import rearrange
from torch import einsum, nn


class PerceiverAttention(nn.Module):
    """Flamingo's resampler block: the latents attend to the media and to themselves."""

    def __init__(self, *, dim, dim_head=64, heads=8):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, latents):
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        q = self.to_q(latents)
        # the paper differs from Perceiver in which they also concat the key / values from the latents
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))
        q = q * self.scale
        sim = einsum('... i d, ... j d -> ... i j', q, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum('... i j, ... j d -> ... i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
