# class: SharedQKAttention
# kwargs: {"dim": 24, "heads": 4}
# may_warn: half_precision
# probe: m(x, keep[:, None, None, :])
import torch
import torch.nn as nn


class SharedQKAttention(nn.Module):
    """Reformer ties the query and the key projection."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, t, e = x.shape
        qk = self.toqk(x).reshape(b, t, self.heads, -1).transpose(1, 2)
        v = self.tov(x).reshape(b, t, self.heads, -1).transpose(1, 2)
        k = nn.functional.normalize(qk, dim=-1)
        dots = torch.einsum('bhie,bhje->bhij', qk, k) * (e // self.heads) ** -0.5
        if mask is not None:
            dots = dots.masked_fill(~mask, -torch.finfo(dots.dtype).max)
        out = torch.einsum('bhij,bhje->bhie', dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, e))
