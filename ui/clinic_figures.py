"""Pictures of the clinic for the head grid: maps of one side, their difference, and which outputs a probe moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mha_core.clinic.compare import Comparison
from mha_core.clinic.outcome import Outcome
from ui import head_grid, theme
from ui.figures import block_labels
from ui.small_maps import fit_maps

FEW_HEADS = 4  # of each side
LEAST_RANGE = 1e-6  # of the colours of a difference: smaller ones are rounding


def _labels(tokens: Sequence[str], count: int) -> Sequence[str]:
    """Give the tokens where they are as many as rows or columns, else numbers."""
    return tokens if len(tokens) == count else [str(number) for number in range(count)]


@dataclass(frozen=True)
class Shown:
    """What of maps is looked at: sequence and heads, by number."""

    sample: int
    heads: Sequence[int]


def telling_heads(compared: Comparison, sample: int) -> Shown:
    """Choose the heads that differ most between the sides, a few of them, in their order."""
    change, right = compared.map_change, compared.right.maps
    count = compared.nearest.experiment.attention.num_heads if right is None else right.shape[1]
    if change is None or change.shape[1] != count:
        return Shown(sample, range(min(count, FEW_HEADS)))
    sizes = change[min(sample, len(change) - 1)].abs().nan_to_num(torch.inf).amax((1, 2))
    most = sizes.sort(descending=True, stable=True).indices[:FEW_HEADS]
    return Shown(sample, sorted(most.tolist()))


def all_heads(outcome: Outcome, sample: int) -> Shown:
    """Choose every head there is."""
    return Shown(sample, range(0 if outcome.maps is None else outcome.maps.shape[1]))


def _picture(compared: Comparison, maps: Tensor, hidden: Tensor | None, shown: Shown, *, signed: bool) -> bytes:
    """Encode maps (H, rows, columns); `hidden` of the same shape, True = left out."""
    small = fit_maps(maps, None if hidden is None else ~hidden, "mean" if signed else "max")
    visible = small.values[np.isfinite(small.values) & ~small.hidden]
    largest = max(float(np.abs(visible).max(initial=0.0)), LEAST_RANGE)
    low, high = (-largest, largest) if signed else (0.0, max(1.0, largest))
    sequence = min(shown.sample, compared.sizes.batch - 1)
    q_tokens, k_tokens = compared.sizes.q_tokens.padded[sequence], compared.sizes.k_tokens.padded[sequence]
    look = head_grid.GridLook(
        table=theme.DIVERGING_TABLE if signed else theme.SEQUENTIAL_TABLE,
        scale="fixed",
        low=low,
        high=high,
        q_labels=block_labels(_labels(q_tokens, maps.shape[1]), small.q_block),
        k_labels=block_labels(_labels(k_tokens, maps.shape[2]), small.k_block),
        head=0,
        rows=[0],
        unit="wrong − right" if signed else "weight",
        exact=small.values[:, 0],
        names=[f"head {head}" for head in shown.heads],
    )
    return head_grid.message(small.maps, look)


def _encode(compared: Comparison, maps: Tensor, shown: Shown, *, signed: bool) -> bytes:
    """Encode some heads of one sequence of maps (B, H, Sq, Sk); hidden is what the mask hides and has no weight."""
    sequence = min(shown.sample, len(maps) - 1)
    chosen, mask = maps[sequence, list(shown.heads)], compared.mask
    fits = len(maps) == len(mask) and maps.shape[-2:] == mask.shape[-2:]
    hidden = ~mask[sequence] & (chosen == 0) if fits else None
    return _picture(compared, chosen, hidden, shown, signed=signed)


def side(compared: Comparison, outcome: Outcome, shown: Shown) -> bytes | None:
    """Encode the maps of one side; None where it has none."""
    return None if outcome.maps is None else _encode(compared, outcome.maps, shown, signed=False)


def difference(compared: Comparison, shown: Shown) -> bytes | None:
    """Encode wrong minus right; None where the maps cannot be laid over one another."""
    return None if compared.map_change is None else _encode(compared, compared.map_change, shown, signed=True)


def moved(compared: Comparison, probe: str) -> bytes | None:
    """Encode how far each output of the wrong side moves, sequences by tokens; None where that cannot be asked."""
    found = compared.wrong.moved.get(probe)
    if found is None:
        return None
    maps = found[None].clone()
    maps[maps < LEAST_RANGE] = 0.0
    small = fit_maps(maps, None if compared.sizes.is_cross else torch.ones_like(maps, dtype=torch.bool), "max")
    look = head_grid.GridLook(
        table=theme.SEQUENTIAL_TABLE,
        scale="fixed",
        low=0.0,
        high=max(float(np.nan_to_num(small.values).max(initial=0.0)), LEAST_RANGE),
        q_labels=block_labels([f"sequence {number}" for number in range(maps.shape[1])], small.q_block),
        k_labels=block_labels(_labels(compared.sizes.q_tokens.padded[0], maps.shape[2]), small.k_block),
        head=0,
        rows=[0],
        unit="largest change",
        exact=small.values[:, 0],
        names=["outputs that move"],
        nouns=("sequence", "token"),
    )
    return head_grid.message(small.maps, look)
