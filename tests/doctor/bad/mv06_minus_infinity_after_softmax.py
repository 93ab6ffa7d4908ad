# case: MV-06
# class: Attention
# kwargs: {"dim": 20, "heads": 5}
# expect: padding, row_sums
# fix: attn = torch.softmax(attn if mask is None else attn.masked_fill(mask[:, None, None, :] == 0, float("-inf")), dim=-1)
# fix: pass
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        b, s, d = query.shape
        q = self.q(query).view(b, s, self.heads, -1).transpose(1, 2)
        k = self.k(key).view(b, key.size(1), self.heads, -1).transpose(1, 2)
        v = self.v(value).view(b, value.size(1), self.heads, -1).transpose(1, 2)
        attn = torch.einsum("bhqd,bhkd->bhqk", q, k) / (d // self.heads) ** 0.5
        attn = torch.softmax(attn, dim=-1)  # wrong
        if mask is not None:
            attn = attn.masked_fill(mask[:, None, None, :] == 0, float("-inf"))  # wrong
        return self.o(torch.einsum("bhqk,bhkd->bhqd", attn, v).transpose(1, 2).reshape(b, s, d))
