"""Small attention layers for the checks of values: a sound one, in steps that a subclass gets wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EMBED, HEADS = 30, 3
HEAD = EMBED // HEADS


class Sound(nn.Module):
    """Self-attention over x (B, S, E); mask (B, S), True = may attend."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(EMBED, EMBED) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, HEAD).transpose(1, 2)

    def join(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).flatten(2)

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        low = torch.finfo(scores.dtype).min
        return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], low)

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return self.hide(scores, mask).softmax(-1)

    def attend(self, query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        return self.out_proj(self.join(self.weigh(q @ k.transpose(-2, -1) / HEAD**0.5, mask) @ v))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, mask)


class Causal(Sound):
    """The same with the future hidden by `fill`, on and above diagonal `first`."""

    fill, first = float("-inf"), 1

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(self.first)
        return super().hide(scores, mask).masked_fill(future, self.fill)


class Crossing(Sound):
    """Attention from x (B, Sq, E) to context (B, Sk, E)."""

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.attend(x, context, mask)
