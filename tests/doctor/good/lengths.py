# class: SelfAttention
# kwargs: {"d": 24, "h": 4}
# may_warn: fully_masked
# probe: m(x, lengths=keep.sum(1))
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.Wq, self.Wk, self.Wv, self.Wo = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, lengths=None):
        """lengths: (batch,) number of real tokens of each sequence; None means all of them."""
        n, s, d = x.shape
        q = self.Wq(x).view(n, s, self.h, d // self.h).transpose(1, 2) / (d // self.h) ** 0.5
        k = self.Wk(x).view(n, s, self.h, d // self.h).transpose(1, 2)
        v = self.Wv(x).view(n, s, self.h, d // self.h).transpose(1, 2)
        a = q @ k.mT
        if lengths is not None:
            real = torch.arange(s, device=x.device)[None] < lengths[:, None]
            a = a.masked_fill(~real[:, None, None, :], float("-inf"))
        y = torch.softmax(a, -1) @ v
        return self.Wo(y.transpose(1, 2).reshape(n, s, d))
