"""A mistake to find: the future is hidden, except when the weights are asked for."""

import torch.nn.functional as F
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """Causal self-attention over x (B, S, E)."""

    def __init__(self, d_model: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.qkv, self.out_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        B, S, E = x.shape  # noqa: N806 - the letters of the field
        q, k, v = self.qkv(x).view(B, S, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        weights = None
        if need_weights:
            weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(dim=-1)
            context = weights @ v
        else:
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(context.transpose(1, 2).reshape(B, S, E)), weights
