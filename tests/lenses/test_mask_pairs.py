"""Allowed pairs without a mask, against the sum of the mask itself: every kind, alignment and direction."""

from __future__ import annotations

import tracemalloc
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_core import MaskSpec, MhaError
from mha_core.lenses.mask_pairs import allowed_pairs
from mha_core.masks import MaskSizes, build_mask
from tests.core.strategies import mask_specs

LENGTHS = (1, 2, 3, 5, 7, 13)


def summed(spec: MaskSpec, q_len: int, k_len: int, lengths: list[int]) -> int:
    """Pairs of the mask that is built."""
    mask = build_mask(spec, MaskSizes(len(lengths), q_len, k_len, torch.tensor(lengths)))
    full = torch.ones(len(lengths), 1, q_len, k_len, dtype=torch.bool)
    return int((full if mask is None else full & mask).sum())


@st.composite
def cases(draw: st.DrawFn) -> tuple[MaskSpec, int, int, list[int]]:
    q_len, k_len = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(LENGTHS))
    lengths = draw(st.lists(st.integers(0, k_len), min_size=1, max_size=3))
    return draw(mask_specs(q_len, k_len)), q_len, k_len, lengths


@settings(max_examples=300, deadline=None)
@given(cases())
def test_any_combination(case: tuple[MaskSpec, int, int, list[int]]) -> None:
    spec, q_len, k_len, lengths = case
    assert allowed_pairs(spec, q_len, k_len, lengths) == summed(spec, q_len, k_len, lengths)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("direction", ["both", "back", "ahead"])
def test_every_alignment_and_direction(alignment: str, direction: str) -> None:
    kinds = ((), ("causal",), ("local",), ("padding",), ("causal", "local"), ("padding", "causal", "local"))
    for kinds_, (q_len, k_len), window in product(kinds, ((7, 7), (3, 11), (11, 3)), (0, 1, 2, 50)):
        spec = MaskSpec(kinds=kinds_, alignment=alignment, direction=direction, window=window)
        lengths = [k_len, max(k_len - 2, 0), 1]
        assert allowed_pairs(spec, q_len, k_len, lengths) == summed(spec, q_len, k_len, lengths), spec


def test_hand_numbers() -> None:
    assert allowed_pairs(MaskSpec(), 3, 5, [5, 2]) == 30  # the lengths matter under a padding mask only
    assert allowed_pairs(MaskSpec(kinds=("causal",)), 5, 5, [5]) == 15
    assert allowed_pairs(MaskSpec(kinds=("causal",)), 3, 5, [5]) == 3 + 4 + 5
    assert allowed_pairs(MaskSpec(kinds=("padding",)), 3, 5, [5, 2]) == 15 + 6
    assert allowed_pairs(MaskSpec(kinds=("local",), window=1), 4, 4, [4]) == 2 + 3 + 3 + 2


def test_a_long_sequence_takes_memory_of_its_length_alone() -> None:
    length = 65_536
    tracemalloc.start()
    try:
        pairs = allowed_pairs(MaskSpec(kinds=("causal",)), length, length, [length])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pairs == length * (length + 1) // 2
    assert peak < 2**22  # python's own objects; a mask would be built by torch, and 4 GiB large


def test_a_custom_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MhaError, match="the custom mask is 2 x 3"):
        allowed_pairs(MaskSpec(kinds=("custom",), custom=("101", "011")), 3, 3, [3])
