# class: AttentionWithPositions
# kwargs: {"dim": 24, "heads": 3, "max_len": 64}
# by_design: permutation, constant_values
# positions: true
# may_warn: half_precision
# probe: m(x)
import torch
from torch import nn


class AttentionWithPositions(nn.Module):
    def __init__(self, dim, heads, max_len):
        super().__init__()
        self.heads = heads
        self.pos_emb = nn.Parameter(torch.randn(1, max_len, dim) * 0.5)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x + self.pos_emb[:, :T]).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, C))
