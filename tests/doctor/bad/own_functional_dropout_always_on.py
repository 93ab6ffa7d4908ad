# case: own
# class: MultiheadAttention
# kwargs: {"embed_dim": 24, "num_heads": 3, "dropout": 0.1}
# expect: determinism
# fix: attn = F.dropout(attn, p=self.dropout, training=self.training)
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value):
        B, L, E = query.shape
        S = key.shape[1]
        q = self.q_proj(query).view(B, L, self.num_heads, self.head_dim).transpose(1, 2) * self.head_dim ** -0.5
        k = self.k_proj(key).view(B, S, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(value).view(B, S, self.num_heads, self.head_dim).transpose(1, 2)
        attn = F.softmax(q @ k.transpose(-2, -1), dim=-1)
        attn = F.dropout(attn, p=self.dropout)  # wrong
        return self.out_proj((attn @ v).transpose(1, 2).reshape(B, L, E)), attn
