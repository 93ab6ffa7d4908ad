# case: own
# class: CrossAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: cross_attention, reach
# fix: v = self.to_v(context).view(b, m, self.heads, -1).transpose(1, 2)
import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context):
        b, n, d = x.shape
        m = context.shape[1]
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.to_k(context).view(b, m, self.heads, -1).transpose(1, 2)
        v = self.to_v(x).view(b, m, self.heads, -1).transpose(1, 2)  # wrong
        attn = torch.softmax(q / q.shape[-1] ** 0.5 @ k.transpose(-1, -2), dim=-1)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, d))
