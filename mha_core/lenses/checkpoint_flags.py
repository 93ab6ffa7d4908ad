"""What is wrong or odd in a checkpoint's attention weights, one sentence each: the kind, how serious, and where.

A "problem" is what no sound training leaves behind, or what would be read wrongly; a "note" is worth knowing and may
well be meant. Statistics are in checkpoint_stats.py; nothing here changes a number.

Letters: H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mha_core.lenses.checkpoint_blocks import Block, Heads, settle_heads
from mha_core.lenses.checkpoint_stats import HeadBlock, MatrixStats, head_blocks, slices
from mha_core.sources.checkpoints.file import TensorInfo
from mha_core.sources.families.found_layer import FoundLayer

Severity = Literal["problem", "note"]
FLOAT16_LARGEST = 65_504.0
HEADS_TOLD = 8
ROUNDING = 4.0  # units in the last place within which two numbers are the same
MATRICES = ("q", "k", "v", "out")
# Share of the rows' spread that lies between heads, by the F statistic: about 1 without heads; beyond 6 about once in a
# million for 4 heads and more, measured 5.7 to 605 along the heads of two trained models, 0.2 to 1.9 across them.
HEADED = 6.0
TIMES_MORE = 3.0
MAX_BUFFER_BYTES = 2**24
MASK_WORDS = ("bias", "mask", "tril", "triu", "causal")


@dataclass(frozen=True)
class Flag:
    """One finding: its kind, how serious it is, where (a layer or tensor), and one sentence."""

    kind: str
    severity: Severity
    where: str
    sentence: str


def _told(heads: Sequence[int]) -> str:
    more = f" and {len(heads) - HEADS_TOLD} more" if len(heads) > HEADS_TOLD else ""
    return f"head{'' if len(heads) == 1 else 's'} {', '.join(map(str, heads[:HEADS_TOLD]))}{more}"


def matrix_flags(stats: MatrixStats) -> Iterator[Flag]:
    """Find what one matrix or bias says by itself: numbers missing, constants, dead heads, odd formats."""
    moments, is_bias, where = stats.moments, stats.role.endswith("_bias"), stats.tensor
    if moments.nan_count or moments.inf_count:
        heads = [block.head for block in stats.heads if block.moments.nan_count or block.moments.inf_count]
        place = f", in {_told(heads)}" if heads else ""
        words = f"{stats.role} holds {moments.nan_count:,} NaN and {moments.inf_count:,} infinite numbers{place}"
        yield Flag("not_finite", "problem", where, words)
    if moments.count and not is_bias and moments.minimum == moments.maximum:
        if moments.maximum != 0:
            yield Flag("constant", "problem", where, f"every number of {stats.role} is {moments.maximum:.6g}")
        elif stats.role == "out":
            words = (
                "the output projection is all zeros: the layer adds nothing, by design at the start of some trainings"
            )
            yield Flag("zeros", "note", where, words)
        else:
            yield Flag("zeros", "problem", where, f"{stats.role} is all zeros: never trained, or lost")
    elif not is_bias:
        yield from _dead_heads(stats)
    yield from _format(stats)


def _dead_heads(stats: MatrixStats) -> Iterator[Flag]:
    lines = "columns of the output projection are" if stats.role == "out" else f"block of {stats.role} is"
    for word, chosen in (("zero", _is_zero), ("constant", _is_constant)):
        heads = [block.head for block in stats.heads if chosen(block)]
        if heads:
            effect = ": they add nothing" if stats.role in ("out", "v") and word == "zero" else ""
            kind = "dead_heads" if word == "zero" else "constant"
            yield Flag(kind, "problem", stats.tensor, f"the {lines} {word} in {_told(heads)}{effect}")


def _is_zero(block: HeadBlock) -> bool:
    return block.moments.count == block.moments.size and block.moments.largest == 0


def _is_constant(block: HeadBlock) -> bool:
    moments = block.moments
    return moments.size > 1 and moments.count == moments.size and moments.minimum == moments.maximum != 0


def _format(stats: MatrixStats) -> Iterator[Flag]:
    largest, where = stats.moments.largest, stats.tensor
    if not stats.dtype.startswith(("float", "bfloat")):
        words = f"{stats.role} is stored as {stats.dtype}: codes of a quantised matrix, most likely, not weights"
        yield Flag("dtype", "problem", where, words)
    elif stats.dtype == "float16" and largest >= FLOAT16_LARGEST:
        yield Flag(
            "overflow", "problem", where, f"{stats.role} reaches float16's largest number, {FLOAT16_LARGEST:,.0f}"
        )
    elif largest > FLOAT16_LARGEST:
        words = f"{stats.role} reaches {largest:.4g}: it would overflow in float16 ({FLOAT16_LARGEST:,.0f})"
        yield Flag("overflow", "note", where, words)
    elif stats.dtype == "float64":
        yield Flag("dtype", "note", where, f"{stats.role} is stored as float64, twice the bytes that are usual")


def _same(one: Tensor, two: Tensor) -> str:
    """Say whether two matrices are the same: "bit for bit", "within rounding", or empty."""
    if one.shape != two.shape or one.dtype != two.dtype or not one.is_floating_point():
        return ""
    if torch.equal(one, two):
        return "bit for bit"
    bound = ROUNDING * torch.finfo(one.dtype).eps
    for a, b in zip(slices(one), slices(two), strict=True):
        if not bool(((a - b).abs() <= bound * torch.maximum(a.abs(), b.abs())).all()):
            return ""
    return "within rounding"


def _is_plain(stats: MatrixStats) -> bool:
    """Whether a matrix holds numbers that can be compared: finite, and not all the same."""
    return stats.moments.count == stats.moments.size and stats.moments.minimum < stats.moments.maximum


def pair_flags(blocks: Sequence[Block], stats: Sequence[MatrixStats], where: str) -> Iterator[Flag]:
    """Find matrices of one layer that are the same, and heads of one matrix that are."""
    by_role = {b.role: (b, s) for b, s in zip(blocks, stats, strict=True) if b.role in MATRICES and _is_plain(s)}
    words = {
        ("k", "v"): "keys are the values",
        ("q", "k"): "scores are symmetric",
        ("q", "v"): "queries are the values",
    }
    for (one, two), effect in words.items():
        if one in by_role and two in by_role:
            how = _same(by_role[one][0].matrix, by_role[two][0].matrix)
            if how:
                yield Flag("equal_blocks", "problem", where, f"{one} equals {two} {how}: {effect}")
    for block, described in by_role.values():
        yield from _identical_heads(block, described)


def _identical_heads(block: Block, stats: MatrixStats) -> Iterator[Flag]:
    if block.heads is None or block.heads < 2:
        return
    parts = head_blocks(block.matrix, block.heads, 1 if block.role == "out" else 0)
    norms = [described.moments.norm for described in stats.heads]
    groups: list[list[int]] = []
    for head, part in enumerate(parts):
        if norms[head] == 0:
            continue
        near = (g for g in groups if math.isclose(norms[g[0]], norms[head], rel_tol=1e-2) and _same(parts[g[0]], part))
        found = next(near, None)
        if found is None:
            groups.append([head])
        else:
            found.append(head)
    for group in (group for group in groups if len(group) > 1):
        words = f"{_told(group)} of {block.role} are identical: they cannot differ, or were copied from shared heads"
        yield Flag("identical_heads", "problem", stats.tensor, words)


def head_flags(layer: FoundLayer, num_heads: int | None, num_kv_heads: int | None) -> Iterator[Flag]:
    """Find head counts that are impossible: given ones, and those of a config that were not used."""
    if num_heads is not None and settle_heads(layer, num_heads, num_kv_heads) is None:
        fit = ", ".join(map(str, layer.possible_heads[:8])) or "no number"
        shared = f" with {num_kv_heads} key/value heads" if num_kv_heads is not None else ""
        words = (
            f"{num_heads} heads{shared} do not fit {layer.q_rows} rows of q and {layer.kv_rows} of k and v; {fit} would"
        )
        yield Flag("head_count", "problem", layer.name, words)
    for sentence in layer.evidence:
        if "does not fit" in sentence:
            yield Flag("head_count", "problem", layer.name, sentence)
    if not layer.possible_heads:
        yield Flag("head_count", "problem", layer.name, "no number of heads fits the shapes of this layer")


def between_heads(matrix: Tensor, heads: int) -> float:
    """Compare how the log norms of rows vary between heads with how they vary inside them: the F statistic.

    Returns:
        About 1 where the rows (R, C) do not lie in `heads` blocks; NaN where it cannot be had.
    """
    norms = torch.cat([part.norm(dim=1) for part in slices(matrix)])
    if len(norms) % heads or len(norms) // heads < 2 or heads < 2 or not bool((norms > 0).all()):
        return math.nan
    by_head = norms.log().reshape(heads, -1)  # (H*D,) -> (H, D)
    inside = by_head.var(1).mean().item()
    return by_head.shape[1] * by_head.mean(1).var().item() / inside if inside > 0 else math.nan


def orientation_flags(layer: FoundLayer, blocks: Sequence[Block], heads: Heads | None) -> Iterator[Flag]:
    """Find square matrices that seem to lie the other way: heads show along the wrong axis."""
    if heads is None:
        return
    for block in blocks:
        rows, columns = block.matrix.shape
        if block.role not in ("q", "k", "v", "out") or rows != columns or block.packed_rows or block.heads is None:
            continue
        along, across = (between_heads(m, block.heads) for m in (block.matrix, block.matrix.t()))
        if block.role == "out":  # its heads are columns
            along, across = across, along
        if across > HEADED and across > TIMES_MORE * along:
            kept = "(in, out), as Conv1D keeps them" if not layer.transposed else "(out, in), as nn.Linear keeps them"
            words = (
                f"{block.role} is square, so its shape does not tell which way it lies, and its heads show along the "
                f"wrong axis (F = {across:.1f} against {along:.1f}): it may be kept {kept}"
            )
            yield Flag("transposed", "problem", block.tensor, words)


def buffer_flags(
    tensors: Mapping[str, TensorInfo], used: frozenset[str], tensor: Callable[[str], Tensor]
) -> Iterator[Flag]:
    """Find buffers that are masks and no weights: square, of zeros and ones or a fill value, named like masks."""
    kinds: dict[str, list[str]] = {}
    for name, info in tensors.items():
        last = name.rsplit(".", 1)[-1].lower()
        is_square = len(info.shape) >= 2 and info.shape[-1] == info.shape[-2] > 1 and math.prod(info.shape[:-2]) == 1
        is_real = not info.dtype.startswith("complex")
        is_named = any(word in last for word in MASK_WORDS) or info.dtype == "bool"
        if name not in used and is_square and is_named and is_real and info.size_bytes <= MAX_BUFFER_BYTES:
            kinds.setdefault(last, []).append(name)
    for last, names in kinds.items():
        words = _mask_words(tensor(names[0]))
        if words:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield Flag("mask_buffer", "note", names[0], f"{last}{more} is {words}: a mask, not weights")


def _mask_words(buffer: Tensor) -> str:
    square = buffer.reshape(buffer.shape[-2:]).double()
    values = torch.unique(square).tolist()
    if len(values) > 2:
        return ""
    if torch.equal(square, torch.ones_like(square).tril()):
        return "ones on and below the diagonal"
    return f"made of {' and '.join(f'{value:g}' for value in values)} alone"


def complex_flags(layer: FoundLayer, tensors: Mapping[str, TensorInfo]) -> Iterator[Flag]:
    """Find complex tensors: attention weights are real, so they are not looked at."""
    for role, name in layer.tensors.items():
        if tensors[name].dtype.startswith("complex"):
            yield Flag("dtype", "problem", name, f"{role} is stored as {tensors[name].dtype}: it is not looked at")


def mixed_formats(stats: Sequence[MatrixStats], where: str) -> Iterator[Flag]:
    """Find layers whose matrices are stored in several formats."""
    kinds = {dtype: [s.role for s in group] for dtype, group in _by_format(stats)}
    if len(kinds) > 1:
        told = "; ".join(f"{', '.join(roles)} as {dtype}" for dtype, roles in kinds.items())
        yield Flag("dtype", "note", where, f"stored in several formats: {told}")


def _by_format(stats: Sequence[MatrixStats]) -> Iterator[tuple[str, list[MatrixStats]]]:
    ordered = sorted(stats, key=lambda described: described.dtype)
    for dtype, group in itertools.groupby(ordered, key=lambda described: described.dtype):
        yield dtype, list(group)
