# case: own
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: batch_independence
# where: any
# fix: x = x + self.pos(torch.arange(s, device=x.device))[None, :, :]
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.heads = heads
        self.pos = nn.Embedding(max_len, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, s, e = x.shape
        x = x + self.pos(torch.arange(b, device=x.device))[:, None, :]  # wrong
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, e))
