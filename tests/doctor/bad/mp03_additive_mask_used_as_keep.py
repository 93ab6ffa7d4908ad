# case: MP-03
# class: MaskedMultiHeadAttention
# kwargs: {"n_embd": 24, "n_head": 4}
# options: causal=true
# expect: causality, gradients, scale, reach, constant_values
# fix: return torch.ones(n, n, device=device).tril()
import math

import torch
import torch.nn as nn


def build_causal_mask(n, device):
    return torch.full((n, n), float("-inf"), device=device).triu(1)  # wrong


class MaskedMultiHeadAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q = nn.Linear(n_embd, n_embd)
        self.k = nn.Linear(n_embd, n_embd)
        self.v = nn.Linear(n_embd, n_embd)
        self.o = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k = self.k(x).view(B, T, self.n_head, -1).transpose(1, 2)
        v = self.v(x).view(B, T, self.n_head, -1).transpose(1, 2)
        w = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        b = build_causal_mask(T, x.device)
        w = w + ((1 - b) * -1e9).to(w.dtype)  # wrong: wants 1 and 0
        w = torch.softmax(w, dim=-1)
        return self.o((w @ v).transpose(1, 2).reshape(B, T, C))
