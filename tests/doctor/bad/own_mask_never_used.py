# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# expect: padding
# where: any
# fix: scores = scores if key_padding_mask is None else scores.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, key_padding_mask=None):
        """key_padding_mask: (B, Sk), True marks padding"""
        b, s, e = query.shape
        q, k, v = (f(t).view(b, t.shape[1], self.num_heads, -1).transpose(1, 2)
                   for f, t in ((self.q, query), (self.k, key), (self.v, value)))
        scores = q / (e // self.num_heads) ** 0.5 @ k.mT
        scores = scores  # wrong
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
