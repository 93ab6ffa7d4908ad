# case: own
# class: CachedAttention
# kwargs: {"dim": 32, "heads": 2}
# options: causal=true
# expect: decode
# where: any
# fix: q, k = self.rotate(q, past), self.rotate(k, past)
# fix: pass
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def rotate(self, x, start):
        f = 10000.0 ** (-torch.arange(0, self.dh, 2, device=x.device).float() / self.dh)
        a = torch.outer(torch.arange(start, start + x.shape[2], device=x.device).float(), f)
        c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
        e, o = x[..., 0::2], x[..., 1::2]
        return torch.stack((e * c - o * s, e * s + o * c), dim=-1).flatten(-2)

    def forward(self, x, layer_past=None):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.dh).permute(2, 0, 3, 1, 4)
        past = 0 if layer_past is None else layer_past[0].shape[2]
        q = self.rotate(q, past)  # wrong
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=2)
            v = torch.cat((layer_past[1], v), dim=2)
        k = self.rotate(k, 0)  # wrong
        mask = torch.ones(t, past + t, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, w)), (k, v)
