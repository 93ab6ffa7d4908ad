# class: GatedInitAttention
# kwargs: {"dim": 24, "heads": 3}
# trivial: true
# probe: m(x)
import torch.nn as nn
import torch.nn.functional as F


def zero_module(module):
    for p in module.parameters():
        p.detach().zero_()
    return module


class GatedInitAttention(nn.Module):
    """The output projection starts at zero, so that a new residual block starts as the identity."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = zero_module(nn.Linear(dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).reshape(b, n, d))
