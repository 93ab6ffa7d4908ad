# case: own
# class: MultiHeadAttention
# kwargs: {"emb_size": 30, "num_heads": 5}
# expect: reach, permutation
# fix: out = (att @ values).transpose(1, 2).reshape(b, n, self.emb_size)
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, emb_size=768, num_heads=8, dropout=0.0):
        super().__init__()
        self.emb_size = emb_size
        self.num_heads = num_heads
        self.keys = nn.Linear(emb_size, emb_size)
        self.queries = nn.Linear(emb_size, emb_size)
        self.values = nn.Linear(emb_size, emb_size)
        self.att_drop = nn.Dropout(dropout)
        self.projection = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, n, _ = x.shape
        queries = self.queries(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        keys = self.keys(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        values = self.values(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        energy = torch.einsum('bhqd, bhkd -> bhqk', queries, keys)
        scaling = (self.emb_size // self.num_heads) ** (1 / 2)
        att = F.softmax(energy / scaling, dim=-1)
        att = self.att_drop(att)
        out = (att @ values).reshape(b, n, self.emb_size)  # wrong
        return self.projection(out)
