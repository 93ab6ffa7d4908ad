"""How many (query, key) pairs a mask allows, without building it.

Causal, local and padding masks leave every query one run of neighbouring keys, so a row costs two numbers instead of
Sk: memory grows with Sq alone. A custom matrix, at most 512 on a side, is summed up along its rows first. No formula
is taken from elsewhere; the tests sum the masks of `mha_core.masks`.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from mha_core.masks import MaskSizes, MaskSpec, custom_mask


def allowed_pairs(spec: MaskSpec, q_len: int, k_len: int, key_lengths: Sequence[int]) -> int:
    """Count the pairs that a mask allows, summed over the batch; heads share them.

    Args:
        spec: which masks are combined.
        q_len: Sq. k_len: Sk.
        key_lengths: real length of each sequence's keys, (B,).

    Returns:
        Pairs, at most B · Sq · Sk.

    Raises:
        MhaError: the custom mask is not Sq x Sk.
    """
    first, last = _key_runs(spec, q_len, k_len)
    before = _allowed_before(spec, q_len, k_len)
    lengths = key_lengths if "padding" in spec.kinds else [k_len] * len(key_lengths)
    total = 0
    for length, sequences in Counter(lengths).items():
        stop = (last + 1).clamp(0, length)
        start = torch.minimum(first.clamp(min=0), stop)
        pairs = stop - start if before is None else _take(before, stop) - _take(before, start)
        total += sequences * int(pairs.sum())
    return total


def _key_runs(spec: MaskSpec, q_len: int, k_len: int) -> tuple[Tensor, Tensor]:
    """Give the first and last key of every query's run, (Sq,) each; they may lie outside 0..Sk-1."""
    offset = k_len - q_len if spec.alignment == "bottom_right" else 0
    position = torch.arange(q_len) + offset  # where each query stands among the keys
    first, last = torch.zeros(q_len, dtype=torch.int64), torch.full((q_len,), k_len - 1)
    if "causal" in spec.kinds:
        last = torch.minimum(last, position)
    if "local" in spec.kinds:
        back = 0 if spec.direction == "ahead" else spec.window
        ahead = 0 if spec.direction == "back" else spec.window
        first, last = torch.maximum(first, position - back), torch.minimum(last, position + ahead)
    return first, last


def _allowed_before(spec: MaskSpec, q_len: int, k_len: int) -> Tensor | None:
    """Count, for every query and key, the custom mask's allowed keys before it. Returns (Sq, Sk + 1), or None."""
    if "custom" not in spec.kinds:
        return None
    matrix = custom_mask(spec, MaskSizes(1, q_len, k_len))[0, 0]
    return torch.nn.functional.pad(matrix.long().cumsum(-1), (1, 0))


def _take(before: Tensor, at: Tensor) -> Tensor:
    return before.gather(1, at[:, None])[:, 0]
