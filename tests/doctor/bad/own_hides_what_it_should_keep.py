# case: own
# class: CausalSelfAttention
# kwargs: {"embed_dim": 24, "num_heads": 3}
# expect: causality
# fix: att = att.masked_fill(~self.tril[:T, :T].bool(), float("-inf"))
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, max_len=64):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.register_buffer("tril", torch.tril(torch.ones(max_len, max_len)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        att = q / q.size(-1) ** 0.5 @ k.transpose(-1, -2)
        att = att.masked_fill(self.tril[:T, :T].bool(), float("-inf"))  # wrong
        return self.out((F.softmax(att, -1) @ v).transpose(1, 2).reshape(B, T, C))
