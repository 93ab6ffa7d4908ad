# case: own
# class: CrossAttention
# kwargs: {"d_model": 24, "n_heads": 2}
# expect: cross_attention, reach
# where: any
# fix: k = self.w_k(key).view(B, -1, self.n_heads, self.d).transpose(1, 2)
# fix: v = self.w_v(value).view(B, -1, self.n_heads, self.d).transpose(1, 2)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d = n_heads, d_model // n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        B, Sq, E = query.shape
        q = self.w_q(query).view(B, -1, self.n_heads, self.d).transpose(1, 2)
        k = self.w_k(query).view(B, -1, self.n_heads, self.d).transpose(1, 2)  # wrong
        v = self.w_v(query).view(B, -1, self.n_heads, self.d).transpose(1, 2)  # wrong
        y = F.scaled_dot_product_attention(q, k, v)
        return self.w_o(y.transpose(1, 2).reshape(B, Sq, E))
