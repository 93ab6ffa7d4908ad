"""What a factor on q kᵀ means: which root of which size it is, and what it does to the scores.

Sources: Vaswani et al. 2017, section 3.2.1 (1/sqrt(head_dim)); Raffel et al. 2020 (T5: none); Yang et al. 2022 (muP:
1/head_dim). Letters: B batch, S length, E embed_dim, H heads, D head_dim: the width of the product q kᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

EXACT = 5e-3  # relative; constants are often written with three digits
ROUNDED = 2e-2


@dataclass(frozen=True)
class Meaning:
    """What a factor is. `status` "unscaled" and "unknown" need more evidence to be judged."""

    status: Literal["pass", "warn", "fail", "unscaled", "unknown"]
    words: str
    cause: str = ""


def near(number: float, wanted: float, tolerance: float = EXACT) -> bool:
    """Whether two numbers agree, relative to the wanted one."""
    return math.isclose(number, wanted, rel_tol=tolerance)


def meaning(factor: float, parts: int, head_dim: int, num_heads: int | None, lengths: Mapping[str, int]) -> Meaning:
    """Name a factor.

    Args:
        factor: what multiplies q kᵀ in all.
        parts: number of factors other than 1 that make it.
        head_dim: D. num_heads: H, None where unknown.
        lengths: other sizes by name that a scale may have been taken from by mistake ("embed_dim", "batch size" ...).
    """
    right = head_dim**-0.5
    if near(factor, right, ROUNDED):
        return Meaning("pass", f"scores are scaled by 1/sqrt(head_dim {head_dim}) = {right:.4g}")
    twice = parts >= 2 and near(factor, 1 / head_dim)
    for name, size in {} if twice else lengths.items():
        if size != head_dim and size > 1 and near(factor, size**-0.5):
            return _wrong_size(factor, name, size, head_dim, num_heads)
    if near(factor, 1.0):
        return Meaning("unscaled", f"scores are not scaled; 1/sqrt(head_dim {head_dim}) would be {right:.4g}")
    return _wrong_power(factor, parts, head_dim) or _wrong_both(factor, head_dim, lengths) or _unknown(factor, head_dim)


def _wrong_size(factor: float, name: str, size: int, head_dim: int, num_heads: int | None) -> Meaning:
    right = head_dim**-0.5
    ratio = right / factor
    direction = f"{ratio:.3g} times too small" if ratio > 1 else f"{1 / ratio:.3g} times too large"
    heads = f", sqrt(H) = sqrt({num_heads})" if num_heads and near(ratio, num_heads**0.5) else ""
    words = (
        f"scores are scaled by 1/sqrt({name} {size}) = {factor:.4g}, not by 1/sqrt(head_dim {head_dim}) = {right:.4g}: "
        f"their spread is {direction}{heads}"
    )
    return Meaning("fail", words, f"the scale is taken from {name} instead of head_dim")


def _wrong_power(factor: float, parts: int, head_dim: int) -> Meaning | None:
    right = head_dim**-0.5
    off = f"1/sqrt(head_dim {head_dim}) is {right:.4g}"
    if near(factor, 1 / head_dim):
        if parts >= 2:
            words = f"scores are scaled twice: {factor:.4g} = 1/{head_dim} in all, but {off}"
            return Meaning("fail", words, "the scale 1/sqrt(head_dim) is applied twice")
        words = f"scores are scaled by 1/head_dim = {factor:.4g} (as in muP); {off}"
        return Meaning("warn", words, "1/head_dim instead of 1/sqrt(head_dim)")
    for number, written in ((0.5 / head_dim, "head_dim**-1/2"), (2 / head_dim, "scores / head_dim**1/2")):
        if head_dim > 4 and parts < 2 and near(factor, number):
            words = f"scores are scaled by {factor:.4g}, as by {written} without brackets; {off}"
            return Meaning("fail", words, "** binds tighter than /: the root needs brackets, **0.5 or math.sqrt")
    powers = {0.5: "sqrt(head_dim)", 1.0: "head_dim", -0.25: "1/head_dim^(1/4)", -0.75: "1/head_dim^(3/4)"}
    for power, name in powers.items():
        if head_dim > 1 and near(factor, head_dim**power):
            times = factor / right
            words = (
                f"scores are multiplied by {name} = {factor:.4g}; {off}: they are {times:.3g} times as large as usual"
            )
            return Meaning("fail", words, f"scores are multiplied by {name} instead of divided by sqrt(head_dim)")
    if factor <= 0:
        return Meaning("fail", f"scores are multiplied by {factor:.4g}; {off}", "the scale is not positive")
    return None


def _wrong_both(factor: float, head_dim: int, lengths: Mapping[str, int]) -> Meaning | None:
    for name, size in lengths.items():
        if size != head_dim and size > 1 and near(factor, (size * head_dim) ** -0.5):
            words = f"scores are scaled twice: by 1/sqrt(head_dim {head_dim}) and by 1/sqrt({name} {size})"
            return Meaning("fail", words, f"two scales: sqrt(head_dim) and sqrt({name})")
        if name == "embed_dim" and size != head_dim and near(factor, 1 / size):
            right = head_dim**-0.5
            words = f"scores are scaled by 1/embed_dim = {factor:.4g}; 1/sqrt(head_dim {head_dim}) is {right:.4g}"
            return Meaning("warn", words, "1/embed_dim instead of 1/sqrt(head_dim)")
    return None


def _unknown(factor: float, head_dim: int) -> Meaning:
    fits = factor**-2
    words = f"scores are scaled by {factor:.4g}; 1/sqrt(head_dim {head_dim}) is {head_dim**-0.5:.4g}"
    whole = (
        f": {factor:.4g} fits head_dim {round(fits)}, not {head_dim}" if abs(fits - round(fits)) < 0.01 * fits else ""
    )
    return Meaning("unknown", words + whole, "a constant scale that fits another head_dim" if whole else "")


def rows_have_one_length(vectors: Tensor) -> bool:
    """Whether all vectors (..., D) are equally long, as after normalising queries and keys."""
    norms = vectors.detach().double().norm(dim=-1).flatten()
    return norms.numel() >= 8 and vectors.shape[-1] > 1 and float(norms.std() / norms.mean().clamp_min(1e-12)) < 5e-3


def saturation(scores: Tensor) -> tuple[float, float]:
    """Give the mean largest weight and the median norm of the softmax derivative (diag(w) - w wᵀ) over rows.

    Args:
        scores: (..., Sq, Sk); hidden positions may hold -inf.
    """
    weights = scores.detach().double().softmax(-1).flatten(0, -2)
    squares = weights.square().sum(-1)
    derivative = (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp_min(0).sqrt()
    return float(weights.amax(-1).mean()), float(derivative.median())
