# case: MP-05
# class: CausalAttention
# kwargs: {"d": 20, "h": 4}
# expect: causality
# fix: keep = j <= i
import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        i = torch.arange(s, device=x.device)[:, None]
        j = torch.arange(s, device=x.device)[None, :]
        keep = j >= i  # wrong
        scores = (q * (d // self.h) ** -0.5) @ k.mT
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d))
