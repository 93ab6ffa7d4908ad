# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: constant_values, gradients, reach, scale, row_sums
# where: any
# fix: z = torch.einsum("bhqk,bkhd->bqhd", attn, v)
import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = (f(x).view(B, S, self.n_heads, -1) for f in (self.q, self.k, self.v))
        attn = torch.einsum("bqhd,bkhd->bhqk", q / q.shape[-1] ** 0.5, k).softmax(dim=-1)
        z = torch.einsum("bhqk,bvhd->bqhd", attn, v)  # wrong
        return self.o(z.reshape(B, S, E))
