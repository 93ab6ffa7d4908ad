# class: GatedAttention
# kwargs: {"dim": 24, "heads": 3}
# probe: m(x)
import torch
from torch import nn
import torch.nn.functional as F


class GatedAttention(nn.Module):
    """Every head's output is gated by its query token, as in AlphaFold and Qwen3-Next."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_gates = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        return self.to_out(out * torch.sigmoid(self.to_gates(x)))
