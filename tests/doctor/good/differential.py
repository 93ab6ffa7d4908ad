# class: DifferentialAttention
# kwargs: {"embed_dim": 32, "num_heads": 2}
# options: causal=true
# by_design: permutation, row_sums, constant_values, scale
# may_warn: row_sums, fully_masked, half_precision
# causal: true
# probe: m(x)
import torch
from torch import nn


class DifferentialAttention(nn.Module):
    """Differential Transformer (Ye et al., 2024): the difference of two softmax maps."""

    def __init__(self, embed_dim, num_heads, lambda_init=0.5):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lambda_init = lambda_init
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.randn(self.head_dim) * 0.1) for _ in range(4))

    def forward(self, x):
        b, n, e = x.shape
        q = self.q_proj(x).view(b, n, 2 * self.num_heads, self.head_dim).transpose(1, 2) * self.scaling
        k = self.k_proj(x).view(b, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)
        w = q @ k.transpose(-1, -2)
        w = w + torch.full((n, n), float("-inf"), dtype=w.dtype, device=w.device).triu(1)
        w = torch.softmax(w, dim=-1).view(b, self.num_heads, 2, n, n)
        lam = (self.lambda_q1 * self.lambda_k1).sum().exp() - (self.lambda_q2 * self.lambda_k2).sum().exp() + self.lambda_init
        w = w[:, :, 0] - lam * w[:, :, 1]
        y = (w @ v) * (1 - self.lambda_init)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, e))
