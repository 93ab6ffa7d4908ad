# case: own
# class: LlamaAttention
# kwargs: {"hidden_size": 32, "num_heads": 4}
# options: causal=true
# expect: decode
# where: any
# fix: cos, sin = self.rope(past_len, past_len + s, x.dtype)
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4))

    def rope(self, start, stop, dtype):
        inv = 1.0 / 10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angle = torch.outer(torch.arange(start, stop).float(), inv).repeat(1, 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, x, past_key_value=None, use_cache=False):
        b, s, e = x.shape
        q, k, v = (p(x).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        past_len = 0 if past_key_value is None else past_key_value[0].shape[-2]
        cos, sin = self.rope(0, s, x.dtype)  # wrong
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=-2)
            v = torch.cat((past_key_value[1], v), dim=-2)
        cache = (k, v) if use_cache else None
        mask = torch.ones(s, k.shape[-2], dtype=torch.bool, device=x.device).tril(past_len)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, s, e)), cache
