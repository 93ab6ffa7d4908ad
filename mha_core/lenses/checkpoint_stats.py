"""What the numbers of one matrix of a checkpoint look like: moments, tails, spectrum, and those of each head's block.

Everything is computed in float64, in slices of rows, so that a matrix in half precision is never copied whole. What the
numbers resemble is in checkpoint_init.py, what is wrong with them in checkpoint_flags.py.

Singular values come from the Gram matrix of the shorter side: those below 1e-8 of the largest are noise, given as 0.
Effective rank: Roy & Vetterli 2007, exp of the entropy of the normalised singular values; stable rank: Rudelson &
Vershynin 2007, squared Frobenius norm over squared spectral norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SLICE = 2**20  # numbers turned into float64 at a time
EXACT_SIDE = 1024  # shorter side up to which all singular values are computed
NOISE = 1e-8  # of the largest singular value: root of float64's precision, which the Gram matrix squares
POWER_STEPS = 40
POWER_COLUMNS = 4


@dataclass(frozen=True)
class Moments:
    """Sums over the finite numbers of a matrix.

    Attributes:
        count: of finite numbers. size: of all numbers.
        mean, std, minimum, maximum: of the finite numbers; std without Bessel's correction.
        norm: root of the sum of squares. rms: root of the mean of squares.
        kurtosis: fourth central moment over squared variance: 3 for a normal, 1.8 for a uniform; NaN without spread.
        zero_share: share of exact zeros. nan_count, inf_count: numbers that are none.
    """

    count: int
    size: int
    mean: float
    std: float
    minimum: float
    maximum: float
    norm: float
    rms: float
    kurtosis: float
    zero_share: float
    nan_count: int
    inf_count: int

    @property
    def largest(self) -> float:
        """Largest absolute value."""
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, and what they say.

    Attributes:
        values: all of them, or only the largest where the matrix is too large.
        largest, smallest, effective_rank: smallest and effective rank are None where not all values were computed.
        stable_rank: squared norm over squared largest singular value, 1 to the shorter side.
        how: how they were computed, in words.
    """

    values: tuple[float, ...]
    largest: float
    smallest: float | None
    effective_rank: float | None
    stable_rank: float
    how: str


@dataclass(frozen=True)
class HeadBlock:
    """One head's rows (of q, k, v) or columns (of the output projection): its numbers and its spectrum."""

    head: int
    moments: Moments
    spectrum: Spectrum | None


@dataclass(frozen=True)
class MatrixStats:
    """Numbers of one matrix, (rows, columns) = (out, in), and of its heads.

    Attributes:
        role: q, k, v, out, or the fused qkv and kv where they cannot be cut; with "_bias" for a bias.
        tensor: name in the file. dtype: as stored.
        row_spread, column_spread: variance of the squared norms of rows and of columns, over what independent
            numbers of the same kurtosis would give; 1 for a fresh matrix, NaN where it cannot be had.
        spectrum: None for a bias, and where numbers are missing.
    """

    role: str
    tensor: str
    rows: int
    columns: int
    dtype: str
    moments: Moments
    row_spread: float
    column_spread: float
    spectrum: Spectrum | None
    heads: tuple[HeadBlock, ...]


def slices(matrix: Tensor) -> Iterator[Tensor]:
    """Give slices of rows in float64. (R, C) -> (r, C) each."""
    rows = max(1, SLICE // max(1, matrix.shape[1]))
    for start in range(0, matrix.shape[0], rows):
        yield matrix[start : start + rows].to(torch.float64)


def measure(matrix: Tensor) -> Moments:
    """Compute the moments of a matrix (R, C) of any dtype."""
    total, squares, count, nans, infinite, zeros = 0.0, 0.0, 0, 0, 0, 0
    low, high = math.inf, -math.inf
    for part in slices(matrix):
        finite = part[torch.isfinite(part)]
        nans, infinite = nans + int(part.isnan().sum()), infinite + int(part.isinf().sum())
        if finite.numel():
            count, zeros = count + finite.numel(), zeros + int((finite == 0).sum())
            total, squares = total + finite.sum().item(), squares + finite.square().sum().item()
            low, high = min(low, finite.min().item()), max(high, finite.max().item())
    if not count:
        nothing = (math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)
        return Moments(0, matrix.numel(), *nothing, 0.0, nans, infinite)
    mean, second, fourth = total / count, 0.0, 0.0
    for part in slices(matrix):
        squared = (part[torch.isfinite(part)] - mean).square()
        second, fourth = second + squared.sum().item() / count, fourth + squared.square().sum().item() / count
    second = 0.0 if low == high else second  # the mean of equal numbers may differ from them by rounding
    kurtosis = fourth / second**2 if second**2 > 0 else math.nan
    spread = (mean, math.sqrt(second), low, high, math.sqrt(squares), math.sqrt(squares / count), kurtosis)
    return Moments(count, matrix.numel(), *spread, zeros / count, nans, infinite)


def _largest_singular_values(matrix: Tensor) -> list[float]:
    """Power iteration with a few columns at once, in float32; from below, within about 1 %."""
    generator = torch.Generator().manual_seed(0)
    turned = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.t()
    block = torch.randn(turned.shape[1], POWER_COLUMNS, generator=generator)
    work = turned.to(torch.float32)
    for _ in range(POWER_STEPS):
        block = torch.linalg.qr(work.t() @ (work @ block)).Q
    found: list[float] = torch.linalg.svdvals((work @ block).double()).tolist()
    return found


def spectrum(matrix: Tensor, norm: float) -> Spectrum:
    """Compute the singular values of a finite matrix (R, C) with the given Frobenius norm."""
    shorter = min(matrix.shape)
    if shorter > EXACT_SIDE:
        values = _largest_singular_values(matrix)
        how = f"the largest by {POWER_STEPS} steps of power iteration; a side of {shorter:,} is too long for all"
        return Spectrum(tuple(values[:1]), values[0], None, None, _ratio(norm, values[0]) ** 2, how)
    gram = torch.zeros(shorter, shorter, dtype=torch.float64)
    turned = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.t()
    for part in slices(turned):
        gram.addmm_(part.t(), part)  # (r, C) -> (C, C)
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)
    singular = torch.where(singular < NOISE * singular[0], 0.0, singular)
    total = singular.sum()
    share = singular / total if total > 0 else singular
    rank = torch.exp(-torch.xlogy(share, share).sum()).item() if total > 0 else 0.0
    values = singular.tolist()
    how = "from the Gram matrix of the shorter side, in float64"
    return Spectrum(tuple(values), values[0], values[-1], rank, _ratio(norm, values[0]) ** 2, how)


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0


def _spread(squared_norms: Tensor, terms: int, moments: Moments) -> float:
    """Variance of sums of `terms` squares over what independent numbers would give."""
    fourth = (moments.kurtosis - 1) * moments.std**4 * terms
    return (squared_norms.var() / fourth).item() if len(squared_norms) > 1 and fourth > 0 else math.nan


def _squared_norms(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms of rows and of columns. (R, C) -> (R,), (C,)."""
    rows, columns = [], torch.zeros(matrix.shape[1], dtype=torch.float64)
    for part in slices(matrix):
        squared = part.square()
        rows.append(squared.sum(1))
        columns += squared.sum(0)
    return torch.cat(rows), columns


def head_blocks(matrix: Tensor, heads: int, axis: int) -> tuple[Tensor, ...]:
    """Cut a matrix into one block per head, along its rows (axis 0) or columns (axis 1); a tail is left out."""
    width = matrix.shape[axis] // heads
    return tuple(matrix.narrow(axis, head * width, width) for head in range(heads))


def describe(
    role: str, tensor: str, matrix: Tensor, heads: int | None = None, *, with_heads: bool = True
) -> MatrixStats:
    """Describe one matrix or bias.

    Args:
        role: as in `MatrixStats`. tensor: name in the file.
        matrix: (R, C), any dtype; a bias is (R, 1).
        heads: number of heads along the rows, or along the columns of "out"; None where it is not known.
        with_heads: False leaves out the numbers of each head.
    """
    moments = measure(matrix)
    whole = moments.count == moments.size > 0
    row_spread = column_spread = math.nan
    is_bias = role.endswith("_bias")
    if whole and not is_bias:
        rows, columns = _squared_norms(matrix)
        row_spread, column_spread = _spread(rows, len(columns), moments), _spread(columns, len(rows), moments)
    found = spectrum(matrix, moments.norm) if whole and not is_bias else None
    blocks: tuple[HeadBlock, ...] = ()
    if with_heads and heads is not None:
        blocks = tuple(
            HeadBlock(head, *_block(part, is_bias))
            for head, part in enumerate(head_blocks(matrix, heads, 1 if role == "out" else 0))
        )
    kind = str(matrix.dtype).removeprefix("torch.")
    sizes = (matrix.shape[0], matrix.shape[1])
    return MatrixStats(role, tensor, *sizes, kind, moments, row_spread, column_spread, found, blocks)


def _block(part: Tensor, is_bias: bool) -> tuple[Moments, Spectrum | None]:
    moments = measure(part)
    can = not is_bias and moments.count == moments.size > 0
    return moments, spectrum(part, moments.norm) if can else None
