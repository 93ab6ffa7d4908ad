# case: own
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: row_sums, constant_values
# fix: self.attend = nn.Softmax(dim=-1)
from einops import rearrange
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attend = nn.Softmax(dim=-2)  # wrong
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = rearrange(self.to_qkv(x), 'b n (k h d) -> k b h n d', k=3, h=self.heads)
        attn = self.attend((q * q.shape[-1] ** -0.5) @ k.mT)  # wrong: over the queries
        return self.to_out(rearrange(attn @ v, 'b h n d -> b n (h d)'))
