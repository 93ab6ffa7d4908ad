# case: IN-03
# class: Attention
# kwargs: {"dim": 24, "heads": 3}
# expect: gradients
# where: any
# fix: pass
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qk = nn.Linear(dim, 2 * dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.v.weight)  # wrong

    def forward(self, x):
        B, S, E = x.shape
        q, k = self.qk(x).view(B, S, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        v = self.v(x).view(B, S, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, S, E))
