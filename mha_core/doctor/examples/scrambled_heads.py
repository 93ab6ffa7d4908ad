"""A mistake to find: the heads are made with view alone, so every head sees a slice of the sequence."""

import math

from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over x (B, S, E)."""

    def __init__(self, d_model: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        B, S, E = x.shape  # noqa: N806 - the letters of the field
        q = self.q_proj(x).view(B, self.n_heads, S, self.head_dim)
        k = self.k_proj(x).view(B, self.n_heads, S, self.head_dim)
        v = self.v_proj(x).view(B, self.n_heads, S, self.head_dim)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)).softmax(dim=-1)
        joined: Tensor = self.out_proj((weights @ v).reshape(B, S, E))
        return joined
