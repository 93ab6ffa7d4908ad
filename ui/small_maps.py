"""Maps of all heads made small enough for one message of the head grid: pooled as little as their share allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mha_core.lenses.pooling import Pooling, pool_maps
from ui.head_grid import GridMaps, encode_maps

SIDES = (128, 96, 64, 48, 32)  # cells a side of one map, largest first


@dataclass(frozen=True)
class SmallMaps:
    """Encoded maps, the pooled values (H, rows, columns) behind them, which are hidden, and how far they are pooled."""

    maps: GridMaps
    values: NDArray[np.float32]
    hidden: NDArray[np.bool_]
    q_block: int
    k_block: int


def fit_maps(maps: Tensor, allowed: Tensor | None, pooling: Pooling, sides: Iterable[int] = SIDES) -> SmallMaps:
    """Pool and encode maps (H, Sq, Sk) at the largest side that fits; `allowed` as in `pool_maps`."""
    previous = (0, 0)
    for side in sides:
        pooled = pool_maps(maps, allowed, side, pooling)
        if (pooled.q_block, pooled.k_block) == previous:
            continue  # the blocks did not grow: nothing would be smaller
        previous = (pooled.q_block, pooled.k_block)
        values, hidden = pooled.values.numpy(), pooled.hidden.numpy()
        encoded = encode_maps(values, hidden)
        if encoded is not None:
            return SmallMaps(encoded, values, hidden, *previous)
    raise AssertionError("the coarsest maps always fit")
