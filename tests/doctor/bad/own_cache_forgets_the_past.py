# case: own
# class: CachedSelfAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# options: causal=true
# expect: decode
# where: any
# fix: present = (k, v)
# fix: pass
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, kv_cache=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        new = (k, v)
        if kv_cache is not None:
            k = torch.cat((kv_cache[0], k), dim=2)
            v = torch.cat((kv_cache[1], v), dim=2)
        present = new  # wrong
        mask = torch.ones(T, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y  # wrong
        return self.out(y.transpose(1, 2).reshape(B, T, C)), present
