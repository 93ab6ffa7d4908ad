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


def pool_maps(maps: Tensor, allowed: Tensor | None, side: int, pooling: Pooling = "max") -> PooledMaps:
    """Pool maps to at most `side` x `side`.

    Args:
        maps: (H, Sq, Sk).
        allowed: boolean, broadcastable to (H, Sq, Sk), True = may attend; None when nothing is hidden.
        side: cells a side, at least 1.
        pooling: keep each block's peak, or its mean over the allowed cells.
    """
    q_len, k_len = maps.shape[-2:]
    q_block, k_block = -(-q_len // side), -(-k_len // side)
    block = (q_block, k_block)
    if allowed is None:
        pooled = _peak(maps.float(), block) if pooling == "max" else _total(maps.float(), block) / _cells(maps, block)
        return PooledMaps(pooled, torch.zeros(1, 1, 1, dtype=torch.bool).expand(pooled.shape), *block)
    allowed = allowed.expand(allowed.shape[0], q_len, k_len)
    if pooling == "max":
        pooled = _peak(maps.float().masked_fill(~allowed, -torch.inf), block)
    else:
        pooled = _total(maps.float().masked_fill(~allowed, 0.0), block) / _total(allowed.float(), block).clamp(min=1)
    hidden = _peak(allowed.float(), block) == 0
    return PooledMaps(pooled.masked_fill(hidden, 0.0), hidden.expand(pooled.shape), *block)


def _peak(maps: Tensor, block: tuple[int, int]) -> Tensor:
    """(N, Sq, Sk) -> (N, Pq, Pk); NaN in a block gives NaN."""
    return maps if block == (1, 1) else F.max_pool2d(maps, block, ceil_mode=True)


def _total(maps: Tensor, block: tuple[int, int]) -> Tensor:
    """(N, Sq, Sk) -> (N, Pq, Pk), the sum of each block."""
    return F.avg_pool2d(maps, block, ceil_mode=True, divisor_override=1)


def _cells(maps: Tensor, block: tuple[int, int]) -> Tensor:
    """Count the cells of each block: those at the edge may be smaller. (1, Pq, Pk)."""
    q_cells, k_cells = (
        (length - block_ * torch.arange(-(-length // block_))).clamp(max=block_)
        for length, block_ in zip(maps.shape[-2:], block, strict=True)
    )
    return (q_cells[:, None] * k_cells)[None]
