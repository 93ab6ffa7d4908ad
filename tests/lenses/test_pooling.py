"""Pooled maps against a loop over blocks, at prime lengths.

Peaks survive, hidden cells take no part and a pooled cell is hidden only when all of it is, a mean is a mean over the
allowed cells, and NaN is neither lost nor spread.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core.lenses.pooling import pool_maps
from tests.lenses.reference import pooled


def maps_and_mask(heads: int, q_len: int, k_len: int, density: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads * q_len + k_len)
    maps = torch.randn(heads, q_len, k_len, generator=generator)
    return maps, torch.rand(heads, q_len, k_len, generator=generator) < density


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("density", [1.0, 0.5, 0.06])
@pytest.mark.parametrize(
    ("q_len", "k_len", "side"), [(13, 13, 5), (7, 31, 4), (31, 7, 7), (29, 23, 1), (11, 11, 11), (17, 3, 16)]
)
def test_against_a_loop(q_len: int, k_len: int, side: int, density: float, kind: str) -> None:
    maps, allowed = maps_and_mask(3, q_len, k_len, density)
    found = pool_maps(maps, allowed, side, kind)
    values, hidden = pooled(maps.double().numpy(), allowed.numpy(), side, kind)
    assert (found.q_block, found.k_block) == (-(-q_len // side), -(-k_len // side))
    assert max(found.values.shape[1:]) <= side
    assert np.array_equal(found.hidden.numpy(), hidden)
    assert np.allclose(found.values.numpy(), values, atol=1e-6)
    assert not found.values[found.hidden].any()


def test_small_maps_are_kept_as_they_are() -> None:
    maps, allowed = maps_and_mask(2, 7, 11, 0.5)
    found = pool_maps(maps, allowed, 11)
    assert (found.q_block, found.k_block) == (1, 1)
    assert torch.equal(found.values[allowed], maps[allowed])
    assert torch.equal(found.hidden, ~allowed)
    assert not found.values[~allowed].any()


@pytest.mark.parametrize("place", [(0, 0), (96, 96), (50, 3), (96, 0)])
def test_a_single_peak_stays_visible(place: tuple[int, int]) -> None:
    maps, allowed = torch.full((1, 97, 97), 0.01), torch.ones(1, 97, 97, dtype=torch.bool)
    maps[0][place] = 0.9
    found = pool_maps(maps, allowed, 8)
    peak = (found.values == 0.9).nonzero().tolist()
    assert peak == [[0, place[0] // found.q_block, place[1] // found.k_block]]
    assert pool_maps(maps, allowed, 8, "mean").values.max() < 0.1


def test_negative_peaks_are_not_lifted_to_zero() -> None:
    """Scores may all be negative: neither the padding of the last block nor a hidden cell may win."""
    maps, allowed = torch.full((2, 7, 7), -5.0), torch.ones(2, 7, 7, dtype=torch.bool)
    allowed[:, ::2] = False
    found = pool_maps(maps, allowed, 3)
    assert (found.values[~found.hidden] == -5).all()
    assert (pool_maps(maps, allowed, 3, "mean").values[~found.hidden] == -5).all()


@pytest.mark.parametrize("kind", ["max", "mean"])
def test_hidden_cells_take_no_part(kind: str) -> None:
    maps, allowed = maps_and_mask(2, 13, 11, 0.4)
    spoiled = maps.masked_fill(~allowed, torch.inf)
    assert torch.equal(pool_maps(spoiled, allowed, 4, kind).values, pool_maps(maps, allowed, 4, kind).values)
    unknown = maps.masked_fill(~allowed, torch.nan)
    assert torch.equal(pool_maps(unknown, allowed, 4, kind).values, pool_maps(maps, allowed, 4, kind).values)


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("side", [13, 5])
def test_nan_marks_its_own_block_only(side: int, kind: str) -> None:
    maps, allowed = maps_and_mask(2, 13, 13, 1.0)
    maps[1, 4, 7] = torch.nan
    found = pool_maps(maps, allowed, side, kind)
    marked = found.values.isnan().nonzero().tolist()
    assert marked == [[1, 4 // found.q_block, 7 // found.k_block]]
    assert not found.hidden.any()


def test_a_mask_shared_by_all_heads_and_half_precision() -> None:
    maps, _ = maps_and_mask(3, 11, 13, 1.0)
    causal = torch.ones(11, 13, dtype=torch.bool).tril(2)
    shared = pool_maps(maps.bfloat16(), causal.expand(3, 11, 13), 4)
    values, hidden = pooled(maps.bfloat16().double().numpy(), causal.expand(3, 11, 13).numpy(), 4, "max")
    assert shared.values.dtype == torch.float32
    assert np.array_equal(shared.values.numpy(), values.astype(np.float32))
    assert np.array_equal(shared.hidden.numpy(), hidden)
