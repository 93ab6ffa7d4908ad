# class: CachedAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# options: causal=true
# by_design: permutation
# may_warn: fully_masked
# causal: true
# probe: m(x)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, kv_cache=None):
        """Returns (output, kv_cache); the cache is a tuple (k, v), each (B, H, S, D)."""
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k = torch.cat((kv_cache[0], k), dim=2)
            v = torch.cat((kv_cache[1], v), dim=2)
        S = k.shape[2]
        mask = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()[-T:]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(B, T, C)), (k, v)
