# case: own
# class: MaskedSelfAttention
# kwargs: {"emb_dim": 24, "heads": 3}
# options: causal=true
# expect: causality
# fix: attn = attn.masked_fill(mask == 1, float("-inf"))
import torch
import torch.nn as nn


class MaskedSelfAttention(nn.Module):
    def __init__(self, emb_dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = emb_dim // heads
        self.qkv = nn.Linear(emb_dim, emb_dim * 3, bias=False)
        self.out = nn.Linear(emb_dim, emb_dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        attn = q * self.head_dim ** -0.5 @ k.transpose(-2, -1)
        mask = torch.triu(torch.ones(t, t, device=x.device), diagonal=1)
        attn = attn.masked_fill(mask == 0, float("-inf"))  # wrong
        attn = attn.softmax(dim=-1).nan_to_num(0.0)
        return self.out((attn @ v).transpose(1, 2).reshape(b, t, c))
