# case: CD-01
# class: CrossAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: cross_attention, batch_independence
# fix: self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)
from torch import nn


class CrossAttention(nn.Module):
    """Image tokens (batch, n, dim) look at text tokens (batch, m, dim)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads)  # wrong

    def forward(self, x, context):
        out, _ = self.mha(x, context, context)  # wrong: should be batch first
        return out
