# case: own
# class: GQAttention
# kwargs: {"dim": 32, "num_heads": 4, "num_kv_heads": 2}
# expect: gqa
# where: any
# fix: v = v.repeat_interleave(g, dim=1)
import torch.nn as nn


class GQAttention(nn.Module):
    def __init__(self, dim, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, s, e = x.shape
        q = self.wq(x).view(b, s, -1, self.head_dim).transpose(1, 2) * self.head_dim ** -0.5
        k = self.wk(x).view(b, s, -1, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, s, -1, self.head_dim).transpose(1, 2)
        g = self.num_heads // self.num_kv_heads
        k = k.repeat_interleave(g, dim=1)
        v = v.repeat(1, g, 1, 1)  # wrong
        p = (q @ k.transpose(2, 3)).softmax(-1)
        return self.wo((p @ v).transpose(1, 2).reshape(b, s, e))
