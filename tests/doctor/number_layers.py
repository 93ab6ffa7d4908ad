"""A sound attention layer whose steps can be replaced one at a time, to build layers with exactly one mistake.

Axes: B batch, S tokens, E embed_dim, H heads, D head_dim.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMBED, HEADS, HEAD = 33, 3, 11


class Layer(nn.Module):
    """Self-attention, right in every way. A mask is boolean, True = may attend, (B, S)."""

    def __init__(self, embed_dim: int = EMBED, num_heads: int = HEADS, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = dropout

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        split = (x.shape[0], x.shape[1], -1, self.head_dim)
        q, k, v = (layer(x).view(split).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim)

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], float("-inf"))

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return F.dropout(weights, self.dropout, self.training)

    def shown(self, weights: Tensor, scores: Tensor) -> Tensor:
        return weights

    def join(self, context: Tensor) -> Tensor:
        return self.out_proj(context.transpose(1, 2).flatten(2))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = self.heads(x)
        scores = self.hide(self.scores(q, k), mask)
        weights = self.used(self.weigh(scores), mask)
        output = self.join(weights @ v)
        return (output, self.shown(weights, scores)) if need_weights else output


class Causal(Layer):
    """The same with a causal mask of its own."""

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        size = scores.shape[-1]
        ahead = torch.ones(scores.shape[-2], size, dtype=torch.bool).triu(1 + size - scores.shape[-2])
        return super().hide(scores.masked_fill(ahead, float("-inf")), mask)


class Grouped(Layer):
    """Fewer key/value heads than query heads: 2 for 6."""

    def __init__(self, kv_heads: int = 2, num_heads: int = 6, head_dim: int = 5) -> None:
        super().__init__(num_heads * head_dim, num_heads)
        torch.manual_seed(1)
        self.num_kv_heads = kv_heads
        self.k_proj = nn.Linear(num_heads * head_dim, kv_heads * head_dim)
        self.v_proj = nn.Linear(num_heads * head_dim, kv_heads * head_dim)

    def share(self, t: Tensor) -> Tensor:
        return t.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)

    def share_values(self, t: Tensor) -> Tensor:
        return self.share(t)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return q, self.share(k), self.share_values(v)


class Cached(Causal):
    """Causal, with a key/value cache that grows along the tokens."""

    def past_mask(self, scores: Tensor) -> Tensor:
        return self.hide(scores, None)

    def forward(  # type: ignore[override]
        self, x: Tensor, past_key_value: tuple[Tensor, Tensor] | None = None, use_cache: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        q, k, v = self.heads(x)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        weights = self.past_mask(self.scores(q, k)).softmax(-1)
        return self.join(weights @ v), ((k, v) if use_cache else None)
