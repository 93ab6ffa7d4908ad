# class: AttentionWithConvBranch
# kwargs: {"dim": 24, "num_heads": 3}
# by_design: permutation, constant_values
# positions: true
# probe: m(x)
import torch.nn as nn
import torch.nn.functional as F


class AttentionWithConvBranch(nn.Module):
    """A depthwise convolution over the values tells the order of the tokens, as in CSWin's LePE."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.get_v = nn.Conv1d(dim, dim, kernel_size=3, padding=1, groups=dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        lepe = self.get_v(v.transpose(1, 2)).transpose(1, 2)
        q, k, v = (t.reshape(B, N, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        return self.proj(y + lepe)
