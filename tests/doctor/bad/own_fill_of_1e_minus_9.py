# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "num_heads": 2}
# expect: padding
# fix: attn_scores = attn_scores.masked_fill(mask == 0, torch.finfo(attn_scores.dtype).min)
import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        attn_scores = torch.matmul(Q / math.sqrt(self.d_k), K.transpose(-2, -1))
        if mask is not None:
            attn_scores = attn_scores.masked_fill(mask == 0, 1e-9)  # wrong
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return torch.matmul(attn_probs, V)

    def forward(self, Q, K, V, mask=None):
        B = Q.size(0)
        Q = self.W_q(Q).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(K).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(V).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        out = self.scaled_dot_product_attention(Q, K, V, mask)
        return self.W_o(out.transpose(1, 2).contiguous().view(B, -1, self.num_heads * self.d_k))
