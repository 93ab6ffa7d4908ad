# case: own
# class: Attention
# kwargs: {"embed_dim": 24, "num_heads": 3}
# expect: padding
# fix: s = s.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(s.dtype).min)
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: (B, S) bool, True means ignore"""
        b, n, e = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        s = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask[None, :, None, :], torch.finfo(s.dtype).min)  # wrong
        return self.out_proj((s.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, e))
