# class: RotaryAttention
# kwargs: {"dim": 32, "heads": 2}
# by_design: permutation
# positions: true
# probe: m(x)
import torch
from torch import nn
import torch.nn.functional as F


def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis).flatten(-2).type_as(x)


class RotaryAttention(nn.Module):
    """An encoder with Meta's interleaved rotary embedding."""

    def __init__(self, dim, heads, theta=10000.0):
        super().__init__()
        self.heads, self.head_dim, self.theta = heads, dim // heads, theta
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def freqs_cis(self, length, device):
        freqs = 1.0 / (self.theta ** (torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim))
        angles = torch.outer(torch.arange(length, device=device).float(), freqs)
        return torch.polar(torch.ones_like(angles), angles)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.wqkv(x).view(b, s, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        f = self.freqs_cis(s, x.device)
        q, k = apply_rotary_emb(q, f), apply_rotary_emb(k, f)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).reshape(b, s, e))
