# case: MD-02
# class: CausalSelfAttention
# kwargs: {"n_embd": 24, "n_head": 2}
# expect: half_precision
# fix: att = att + self.mask[:T, :T].to(att.dtype)
import torch
import torch.nn as nn


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.mask = torch.full((block_size, block_size), float("-inf")).triu(1)  # plain attribute, stays float32

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        att = (q / q.size(-1) ** 0.5) @ k.transpose(-2, -1)
        att = att + self.mask[:T, :T]  # wrong
        y = att.softmax(-1) @ v  # wrong: float32 @ half
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
