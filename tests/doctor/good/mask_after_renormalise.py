# class: MaskedAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# may_warn: fully_masked, half_precision, padding
# probe: m(x, keep)
import torch
import torch.nn as nn


class MaskedAttention(nn.Module):
    """AllenNLP's masked_softmax: zero the hidden weights after the softmax, then renormalise."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        b, s, d = x.shape
        heads = lambda t: t.view(b, s, self.num_heads, d // self.num_heads).transpose(1, 2)
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        w = torch.softmax(q @ k.transpose(2, 3) / (d // self.num_heads) ** 0.5, dim=-1)
        if mask is not None:
            w = w * mask[:, None, None, :].to(w.dtype)
            w = w / (w.sum(dim=-1, keepdim=True) + 1e-13)
        return self.o((w @ v).transpose(1, 2).reshape(b, s, d))
