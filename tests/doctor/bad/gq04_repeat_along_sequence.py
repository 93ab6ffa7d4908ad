# case: GQ-04
# class: GQA
# kwargs: {"dim": 32, "n_heads": 4, "n_kv_heads": 2}
# expect: reach, gqa
# fix: k = k.repeat_interleave(self.n_rep, dim=2)
# fix: v = v.repeat_interleave(self.n_rep, dim=2)
import torch
from torch import nn


class GQA(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.hd = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.hd)
        self.wk = nn.Linear(dim, n_kv_heads * self.hd)
        self.wv = nn.Linear(dim, n_kv_heads * self.hd)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, self.n_heads, self.hd)
        k = self.wk(x).view(b, s, self.n_kv_heads, self.hd)
        v = self.wv(x).view(b, s, self.n_kv_heads, self.hd)
        k = k.repeat_interleave(self.n_rep, dim=1)  # wrong
        v = v.repeat_interleave(self.n_rep, dim=1)  # wrong
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        att = torch.softmax(q * self.hd ** -0.5 @ k.transpose(2, 3), dim=-1)  # wrong: raises here
        return self.wo((att @ v).transpose(1, 2).reshape(b, s, -1))
