# case: FM-06
# class: SelfAttention
# kwargs: {"d_model": 20, "heads": 2}
# expect: fully_masked
# where: any
# fix: probs = torch.softmax(scores.masked_fill(hidden.all(-1, keepdim=True), 0.0), dim=-1) * ~hidden
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        """mask: bool (B, S, S), True = may attend"""
        b, s, e = x.shape
        q, k, v = (p(x).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q / (e // self.heads) ** 0.5 @ k.transpose(-2, -1)
        if mask is not None:
            hidden = ~mask[:, None]
            scores = scores + torch.zeros_like(scores).masked_fill(hidden, float("-inf"))
        else:
            hidden = scores.new_zeros(1, 1, 1, 1, dtype=torch.bool)
        probs = torch.nan_to_num(torch.softmax(scores, dim=-1))  # wrong
        return self.o((probs @ v).transpose(1, 2).reshape(b, s, e))
