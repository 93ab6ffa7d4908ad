"""Nothing to find: causal self-attention with a padding mask, through torch's fused attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """Causal self-attention over x (B, S, E); mask (B, S), True = may attend."""

    def __init__(self, d_model: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.qkv, self.out_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, S, E = x.shape  # noqa: N806 - the letters of the field
        q, k, v = self.qkv(x).view(B, S, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            allowed = allowed & mask.bool()[:, None, None, :]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        joined: Tensor = self.out_proj(context.transpose(1, 2).reshape(B, S, E))
        return joined
