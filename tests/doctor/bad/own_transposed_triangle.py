# case: own
# class: GPTAttention
# kwargs: {"n_embd": 24, "n_head": 3, "block_size": 64}
# options: causal=true
# expect: causality
# fix: self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)))
import torch
import torch.nn as nn


class GPTAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.attn = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).t())  # wrong

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.attn(x).chunk(3, dim=2))
        w = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        w = w.masked_fill(self.mask[:T, :T] == 0, torch.finfo(w.dtype).min)
        return self.proj((w.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
