# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 28, "num_heads": 4}
# expect: row_sums, constant_values
# fix: attn = torch.softmax(scores, dim=-1)
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        B, S, E = x.shape
        Q = self.W_q(x).view(B, S, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(x).view(B, S, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(x).view(B, S, self.num_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(Q / self.d_k ** 0.5, K.transpose(-1, -2))
        attn = torch.softmax(scores, dim=1)  # wrong
        out = torch.matmul(attn, V).transpose(1, 2).reshape(B, S, E)
        return self.W_o(out)
