# class: CrossModalAttention
# kwargs: {"q_dim": 20, "kv_dim": 12, "attn_dim": 24, "n_head": 4}
# embed: 20
# cross: 12
# probe: m(x, y)
import torch
from torch import nn
import torch.nn.functional as F


class CrossModalAttention(nn.Module):
    """Text (batch, words, q_dim) looks at image regions (batch, regions, kv_dim)."""

    def __init__(self, q_dim, kv_dim, attn_dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(q_dim, attn_dim)
        self.key = nn.Linear(kv_dim, attn_dim)
        self.value = nn.Linear(kv_dim, attn_dim)
        self.merge = nn.Linear(attn_dim, q_dim)

    def forward(self, text, regions):
        b, w, _ = text.shape
        r = regions.shape[1]
        q = self.query(text).view(b, w, self.n_head, -1).transpose(1, 2)
        k = self.key(regions).view(b, r, self.n_head, -1).transpose(1, 2)
        v = self.value(regions).view(b, r, self.n_head, -1).transpose(1, 2)
        return self.merge(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, w, -1))
