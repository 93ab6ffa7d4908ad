# case: own
# class: DecoderCrossAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: cross_attention
# where: any
# fix: y = F.scaled_dot_product_attention(q, k, v)
import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderCrossAttention(nn.Module):
    """Every target token may look at the whole source."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, memory):
        b, t, e = x.shape
        q = self.q(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k = self.k(memory).view(b, memory.shape[1], self.n_heads, -1).transpose(1, 2)
        v = self.v(memory).view(b, memory.shape[1], self.n_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # wrong
        return self.o(y.transpose(1, 2).reshape(b, t, e))
