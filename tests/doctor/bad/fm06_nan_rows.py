# case: FM-06
# class: SelfAttention
# kwargs: {"d_model": 20, "heads": 2}
# expect: fully_masked
# where: any
# fix: scores = scores.masked_fill(pad_mask[:, None, None, :], torch.finfo(scores.dtype).min)
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, pad_mask=None):
        """pad_mask: bool (B, S), True = padding"""
        b, s, e = x.shape
        q, k, v = (p(x).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q / (e // self.heads) ** 0.5 @ k.transpose(-2, -1)
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :], float("-inf"))  # wrong
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
