# class: MultiHeadAttention
# kwargs: {"d": 24, "n": 3}
# may_warn: half_precision
# probe: m(x, keep)
import torch
import torch.nn as nn


def softmax(x):
    x = x - x.max(dim=-1, keepdim=True)[0]
    e = torch.exp(x)
    return e / e.sum(dim=-1, keepdim=True)


class MultiHeadAttention(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.n = n
        self.wq = nn.Parameter(torch.randn(d, d) / d ** 0.5)
        self.wk = nn.Parameter(torch.randn(d, d) / d ** 0.5)
        self.wv = nn.Parameter(torch.randn(d, d) / d ** 0.5)
        self.wo = nn.Parameter(torch.randn(d, d) / d ** 0.5)

    def forward(self, X, pad_mask=None):
        """pad_mask (B, T): 1 = token, 0 = pad"""
        B, T, d = X.shape
        q = (X @ self.wq).reshape(B, T, self.n, -1).swapaxes(1, 2)
        k = (X @ self.wk).reshape(B, T, self.n, -1).swapaxes(1, 2)
        v = (X @ self.wv).reshape(B, T, self.n, -1).swapaxes(1, 2)
        s = q @ k.swapaxes(-1, -2) / (d / self.n) ** 0.5
        if pad_mask is not None:
            s = torch.where(pad_mask[:, None, None, :] == 0, torch.tensor(torch.finfo(s.dtype).min, dtype=s.dtype), s)
        return (softmax(s) @ v).swapaxes(1, 2).reshape(B, T, d) @ self.wo
