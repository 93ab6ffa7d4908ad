# case: CA-08
# class: Attention
# kwargs: {"dim": 24, "heads": 4}
# options: causal=true
# expect: causality
# where: any
# fix: attn = attn.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), torch.finfo(attn.dtype).min).softmax(dim=-1)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, output_attentions=False):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if not output_attentions:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(B, T, C))
        attn = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)  # wrong
        return self.proj((attn @ v).transpose(1, 2).reshape(B, T, C)), attn
