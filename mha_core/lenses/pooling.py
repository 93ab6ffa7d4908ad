"""Maps too large to show, made smaller: blocks of cells pooled to their peak or their mean.

A hidden cell is not a zero: a pooled cell is hidden only when every cell in it is. Peaks are kept by default, so that
one strong link in 4,096 tokens stays visible.

Axes: H heads, Sq queries, Sk keys; Pq, Pk pooled sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

Pooling = Literal["max", "mean"]


@dataclass(frozen=True)
class PooledMaps:
    """Maps of at most `side` cells a side.

    Attributes:
        values: (H, Pq, Pk); NaN where a cell of the block is NaN; 0 where hidden.
        hidden: boolean (H, Pq, Pk), True where every cell of the block is masked.
        q_block, k_block: queries and keys per cell.
    """

    values: Tensor
    hidden: Tensor
    q_block: int
    k_block: int


def pool_maps(maps: Tensor, allowed: Tensor, side: int, pooling: Pooling = "max") -> PooledMaps:
    """Pool maps to at most `side` x `side`.

    Args:
        maps: (H, Sq, Sk).
        allowed: boolean (H, Sq, Sk), True = may attend.
        side: cells a side, at least 1.
        pooling: keep each block's peak, or its mean over the allowed cells.
    """
    q_block, k_block = (-(-length // side) for length in maps.shape[-2:])
    if q_block == k_block == 1:
        return PooledMaps(maps.float().masked_fill(~allowed, 0.0), ~allowed, 1, 1)
    padding = (0, -maps.shape[-1] % k_block, 0, -maps.shape[-2] % q_block)

    def blocks(tensor: Tensor, filler: float) -> Tensor:
        """(H, Sq, Sk) -> (H, Pq, Pk, q_block * k_block)."""
        padded = F.pad(tensor, padding, value=filler)
        return rearrange(padded, "h (p q) (r k) -> h p r (q k)", q=q_block, k=k_block)

    shown = blocks(allowed, False)
    hidden = ~shown.any(-1)
    values = blocks(maps.float(), 0.0)
    if pooling == "max":
        pooled = values.masked_fill(~shown, -torch.inf).amax(-1)
    else:
        pooled = values.masked_fill(~shown, 0.0).sum(-1) / shown.sum(-1).clamp(min=1)
    return PooledMaps(pooled.masked_fill(hidden, 0.0), hidden, q_block, k_block)
