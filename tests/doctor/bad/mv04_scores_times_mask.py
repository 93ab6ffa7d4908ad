# case: MV-04
# class: MultiHeadAttention
# kwargs: {"dim": 24, "num_heads": 3}
# expect: padding
# fix: scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """mask: (batch, instances) with 1 for real instances and 0 for padding"""
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.num_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = torch.matmul(q, k.transpose(-2, -1)) * (d // self.num_heads) ** -0.5
        if mask is not None:
            scores = scores * mask[:, None, None, :].to(scores.dtype)  # wrong
        out = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.wo(out.transpose(1, 2).reshape(b, n, d))
