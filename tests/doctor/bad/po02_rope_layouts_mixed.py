# case: PO-02
# class: RotaryAttention
# kwargs: {"dim": 32, "heads": 2}
# expect: permutation, decode, reach
# where: any
# fix: emb = torch.repeat_interleave(freqs, 2, dim=-1)
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class RotaryAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq)

    def rotary(self, x):
        t = torch.arange(x.shape[-2], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)  # wrong
        return (x * emb.cos() + rotate_every_two(x) * emb.sin()).to(x.dtype)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v)
        return self.out(y.transpose(1, 2).reshape(b, s, e))
