# class: DecoderCrossAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# may_warn: half_precision
# cross: 24
# probe: m(x, y, y, keep)
import math

import torch
import torch.nn as nn


class DecoderCrossAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, src_mask=None):
        """src_mask: (B, Sk), True for source tokens, False for padding."""
        B = query.size(0)
        q = self.W_q(query).view(B, query.size(1), self.n_heads, self.d_head).transpose(1, 2)
        k = self.W_k(key).view(B, key.size(1), self.n_heads, self.d_head).transpose(1, 2)
        v = self.W_v(value).view(B, value.size(1), self.n_heads, self.d_head).transpose(1, 2)
        e = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        if src_mask is not None:
            e = e.masked_fill(~src_mask.bool().unsqueeze(1).unsqueeze(2), torch.finfo(e.dtype).min)
        a = e.softmax(dim=-1)
        c = torch.matmul(a, v).transpose(1, 2).contiguous().view(B, -1, self.n_heads * self.d_head)
        return self.W_o(c), a
