# case: own
# class: LlamaLikeAttention
# kwargs: {"dim": 32, "n_heads": 4, "n_kv_heads": 2}
# expect: gqa
# fix: return x[:, :, None].expand(b, h, self.n_rep, s, d).reshape(b, h * self.n_rep, s, d)
import torch
import torch.nn as nn
import torch.nn.functional as F


class LlamaLikeAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep, self.head_dim = n_heads // n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def repeat_kv(self, x):
        b, h, s, d = x.shape
        return x[:, None].expand(b, self.n_rep, h, s, d).reshape(b, h * self.n_rep, s, d)  # wrong

    def forward(self, x):
        b, s, e = x.shape
        q = self.wq(x).view(b, s, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, s, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, s, self.n_kv_heads, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.repeat_kv(k), self.repeat_kv(v))
        return self.wo(y.transpose(1, 2).reshape(b, s, e))
