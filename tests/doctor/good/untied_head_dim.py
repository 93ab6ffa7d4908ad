# class: Attention
# kwargs: {"dim": 9, "heads": 2, "head_dim": 5}
# probe: m(x)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """The heads need not divide the width: q, k, v go to heads * head_dim and come back."""

    def __init__(self, dim, heads, head_dim):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(dim, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, dim)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = [t.view(b, s, self.heads, self.head_dim).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, self.heads * self.head_dim))
