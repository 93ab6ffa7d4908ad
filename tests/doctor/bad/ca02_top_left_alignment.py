# case: CA-02
# class: CausalSelfAttention
# kwargs: {"dim": 24, "n_heads": 3}
# expect: decode
# fix: y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - T))
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, past_key_value=None, use_cache=False):
        B, T, C = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=-2)
            v = torch.cat((past_key_value[1], v), dim=-2)
        present = (k, v) if use_cache else None
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # wrong
        return self.wo(y.transpose(1, 2).reshape(B, T, C)), present
