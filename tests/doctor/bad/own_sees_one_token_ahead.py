# case: own
# class: CausalSelfAttention
# kwargs: {"n_embd": 24, "n_head": 2}
# expect: causality
# fix: self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)))
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size), diagonal=1))  # wrong

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
