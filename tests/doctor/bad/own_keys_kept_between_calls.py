# case: own
# class: StreamingAttention
# kwargs: {"dim": 24, "heads": 2}
# expect: determinism, batch_independence, reach
# where: any
# fix: pass
# fix: pass
import torch
import torch.nn as nn
import torch.nn.functional as F


class StreamingAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mean_k = None

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.mean_k is not None:
            k = k - self.mean_k * 3  # wrong
        self.mean_k = k.detach().square().mean(dim=(0, 2), keepdim=True)  # wrong
        k = k * 1.0
        y = F.scaled_dot_product_attention(q * k.mean(2, keepdim=True).tanh(), k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, e))
