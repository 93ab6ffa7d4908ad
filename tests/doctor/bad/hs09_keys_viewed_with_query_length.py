# case: HS-09
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "n_heads": 3}
# expect: cross_attention
# fix: k = self.k_linear(k).view(bs, k.size(1), -1, self.d_k).transpose(1, 2)
# fix: v = self.v_linear(v).view(bs, v.size(1), -1, self.d_k).transpose(1, 2)
import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.d_model, self.h, self.d_k = d_model, n_heads, d_model // n_heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v):
        bs, seq_len, _ = q.shape
        q = self.q_linear(q).view(bs, seq_len, -1, self.d_k).transpose(1, 2)
        k = self.k_linear(k).view(bs, seq_len, -1, self.d_k).transpose(1, 2)  # wrong
        v = self.v_linear(v).view(bs, seq_len, -1, self.d_k).transpose(1, 2)  # wrong
        scores = torch.matmul(q / math.sqrt(self.d_k), k.transpose(-2, -1))
        output = torch.matmul(scores.softmax(dim=-1), v)
        concat = output.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out(concat)
