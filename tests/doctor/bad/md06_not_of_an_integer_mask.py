# case: MD-06
# class: EncoderSelfAttention
# kwargs: {"d_model": 24, "n_heads": 4}
# expect: padding
# where: any
# fix: scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
import torch
import torch.nn as nn


class EncoderSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """mask: (B, S) integers, 1 for tokens and 0 for padding (the tokenizer's attention_mask)"""
        B, S, E = x.shape
        q = self.q(x).view(B, S, self.n_heads, -1).transpose(1, 2)
        k = self.k(x).view(B, S, self.n_heads, -1).transpose(1, 2)
        v = self.v(x).view(B, S, self.n_heads, -1).transpose(1, 2)
        scores = (q / q.size(-1) ** 0.5) @ k.transpose(-1, -2)
        if mask is not None:
            mask = mask.long()
            scores = scores.masked_fill((~mask)[:, None, None, :].bool(), -1e9)  # wrong
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, S, E))
