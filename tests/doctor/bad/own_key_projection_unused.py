# case: own
# class: MultiHeadAttention
# kwargs: {"embed_dim": 24, "num_heads": 4}
# expect: gradients
# where: any
# fix: k = self.split(self.k_proj(x))
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def forward(self, x):
        q = self.split(self.q_proj(x))
        k = self.split(self.q_proj(x))  # wrong
        v = self.split(self.v_proj(x))
        w = torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2), -1)
        return self.out_proj((w @ v).transpose(1, 2).flatten(2))
