"""Two mistakes to find: a mask value that scores can beat, and the root of the model's width in place of the head's."""

import math

from torch import Tensor, nn


class PaddedAttention(nn.Module):
    """Self-attention over x (B, S, E); mask (B, S), 1 = may attend."""

    def __init__(self, d_model: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, S, E = x.shape  # noqa: N806 - the letters of the field
        split = (B, S, self.n_heads, self.head_dim)
        q, k, v = (proj(x).view(split).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-2, -1) / math.sqrt(E)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * -1e4
        joined: Tensor = self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, S, E))
        return joined
