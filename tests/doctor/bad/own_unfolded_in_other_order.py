# case: own
# class: MultiHeadAttention
# kwargs: {"dim": 24, "heads": 4}
# expect: batch_independence
# fix: out = rearrange(out, '(b h) n d -> b n (h d)', h=self.heads)
import torch
from einops import rearrange
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (rearrange(f(x), 'b n (h d) -> (b h) n d', h=self.heads) for f in (self.to_q, self.to_k, self.to_v))
        attn = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).softmax(dim=-1)
        out = torch.bmm(attn, v)
        out = rearrange(out, '(h b) n d -> b n (h d)', h=self.heads)  # wrong
        return self.to_out(out)
