# case: own
# class: RotarySelfAttention
# kwargs: {"dim": 32, "n_heads": 4}
# expect: permutation, reach, decode
# where: any
# fix: q, k = self.rotate(q.transpose(1, 2)), self.rotate(k.transpose(1, 2))
# fix: y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2))
import torch
import torch.nn as nn
import torch.nn.functional as F


class RotarySelfAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))

    def rotate(self, x):
        """x: (batch, heads, length, head_dim)"""
        t = torch.arange(x.shape[-2], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        cos, sin = torch.cat((freqs, freqs), -1).cos().to(x.dtype), torch.cat((freqs, freqs), -1).sin().to(x.dtype)
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-x2, x1), -1) * sin

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = (t.view(b, s, self.n_heads, self.head_dim) for t in self.wqkv(x).chunk(3, dim=-1))
        q, k = self.rotate(q), self.rotate(k)  # wrong
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # wrong
        return self.wo(y.transpose(1, 2).reshape(b, s, e))
