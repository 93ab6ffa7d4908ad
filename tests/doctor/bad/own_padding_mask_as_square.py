# case: own
# class: SelfAttention
# kwargs: {"dim": 20, "heads": 2}
# expect: padding
# fix: scores = scores.masked_fill(padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, padding_mask=None):
        """padding_mask: (B, S), True = padding"""
        b, s, e = x.shape
        q, k, v = (w(x).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = q / (e // self.heads) ** 0.5 @ k.transpose(2, 3)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask, torch.finfo(scores.dtype).min)  # wrong
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
