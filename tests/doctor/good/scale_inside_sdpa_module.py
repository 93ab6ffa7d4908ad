# class: ScaledDotProductAttention
# kwargs: {}
# heads: (3, 16)
# may_warn: half_precision
# probe: m(x, x, x, keep[:, None, None, :])
import math

import torch
from torch import nn


class ScaledDotProductAttention(nn.Module):
    def forward(self, query, key, value, mask=None):
        """query, key, value: [batch_size, heads, seq_len, head_dim]"""
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-1e9"))
        attention = torch.softmax(scores, dim=-1)
        return torch.matmul(attention, value), attention
