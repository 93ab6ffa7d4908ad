# class: LearnedScaleAttention
# kwargs: {"dim": 20, "num_heads": 4}
# by_design: scale
# may_warn: half_precision
# probe: m(x)
import torch
import torch.nn as nn


class LearnedScaleAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.log(torch.tensor((dim // num_heads) ** -0.5)))
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.temperature.exp()
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))
