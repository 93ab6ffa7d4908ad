# case: own
# class: MultiHeadSelfAttention
# kwargs: {"d_model": 24, "num_heads": 3}
# expect: reach, permutation
# fix: z = torch.einsum("bhij,bhjd->bihd", p, v).reshape(b, n, -1)
import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        d = d_model // num_heads
        self.wq = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model ** -0.5)
        self.wk = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model ** -0.5)
        self.wv = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model ** -0.5)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, _ = x.shape
        q = torch.einsum("bne,hed->bhnd", x, self.wq) * self.wq.shape[-1] ** -0.5
        k = torch.einsum("bne,hed->bhnd", x, self.wk)
        v = torch.einsum("bne,hed->bhnd", x, self.wv)
        p = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        z = torch.einsum("bhij,bhjd->bhid", p, v).reshape(b, n, -1)  # wrong
        return self.wo(z)
