# class: CrossAttention
# kwargs: {"dim": 32, "context_dim": 20, "num_heads": 4}
# cross: 20
# probe: m(x, y, keep)
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, dim, context_dim, num_heads=8):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(context_dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None):
        """context_mask: bool, (batch, context length), True for real tokens."""
        b, n, d = x.shape
        m = context.shape[1]
        q = self.q(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(context).view(b, m, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if context_mask is not None:
            context_mask = context_mask[:, None, None, :].expand(b, 1, n, m)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=context_mask)
        return self.out(o.transpose(1, 2).reshape(b, n, d))
