# case: own
# class: CausalSelfAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: determinism, causality, reach, decode, mode_round_trip
# where: any
# fix: if True:
import torch
import torch.nn as nn


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.mask = None

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if self.mask is None:  # wrong
            self.mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        scores = (q * (C // self.n_heads) ** -0.5) @ k.mT
        scores = scores.masked_fill(self.mask[:T, :T], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
