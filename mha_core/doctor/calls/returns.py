"""Finds output and weights in what a module returned, whatever it is wrapped in, by shape, name and values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.calls.convention import Answer, Convention, Request
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.layout import unfolded

_WEIGHT_NAMES = re.compile(r".*(attn|attention|weight|prob|map|score)", re.IGNORECASE)
MAX_SINKS = 2  # columns of weights beyond the keys: learned sinks, bias_k, zero_attn
_OUTPUT_NAMES = re.compile(r".*(out|hidden|context|result|state|^x$|^y$)", re.IGNORECASE)


def read(result: Any, convention: Convention, request: Request) -> Answer:
    """Read output and weights from what was returned.

    Raises:
        ModuleFailure: nothing in it has the shape of an output.
    """
    entries = list(leaves(result))
    tensors = [(name, leaf) for name, leaf in entries if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    maps = [Map(name, leaf, read) for name, leaf in tensors if (read := as_map(leaf, convention, request)) is not None]
    outputs = [
        (name, leaf, read) for name, leaf in tensors if (read := as_output(leaf, convention, request)) is not None
    ]
    first = next((leaf for _, leaf, _ in outputs), None)
    weights = _chosen(maps, first) if len(tensors) > 1 else None
    fitting = [entry for entry in outputs if weights is None or entry[1] is not weights.leaf]
    if not fitting:
        raise ModuleFailure(_unreadable(entries, request))
    width = convention.out_dim or request.inputs.query.shape[-1]
    fitting.sort(key=lambda entry: (not _OUTPUT_NAMES.match(entry[0]), entry[2].shape[-1] != width))
    _, output, folded = fitting[0]
    used = (output, weights.leaf) if weights else (output,)
    extra = tuple(leaf for _, leaf in top(result) if not any(leaf is one for one in used))
    return Answer(folded, weights.read if weights else None, extra)


@dataclass(frozen=True)
class Map:
    """A tensor with the shape of attention weights, as it came and as (B, H, Sq, Sk) or (B, Sq, Sk)."""

    name: str
    leaf: Tensor
    read: Tensor


def as_output(leaf: Tensor, convention: Convention, request: Request) -> Tensor | None:
    """Give a tensor as (B, Sq, anything), or None where its shape does not allow it."""
    batch, q_len = request.inputs.query.shape[:2]
    if (folded := unfolded(leaf, convention.layout, batch, q_len)) is not None:
        return folded
    if leaf.dim() == 4 and convention.takes == "heads":
        axis = convention.heads_axis
        if leaf.shape[0] == batch and leaf.shape[3 - axis] == q_len:
            return (leaf.transpose(1, 2) if axis == 1 else leaf).flatten(2)
    if leaf.dim() == 4 and leaf.shape[:2] == (batch, q_len):
        return leaf.flatten(2)
    if leaf.dim() != 3:
        return None
    shape = (batch, q_len) if convention.batch_first else (q_len, batch)
    if leaf.shape[:2] != shape:
        return None
    return leaf if convention.batch_first else leaf.transpose(0, 1)


def as_map(leaf: Tensor, convention: Convention, request: Request) -> Tensor | None:
    """Give a tensor as (B, H, Sq, Sk) or (B, Sq, Sk), or None where its shape does not allow it."""
    batch, q_len = request.inputs.query.shape[:2]
    k_len, heads = request.inputs.key.shape[1], convention.num_heads
    if leaf.dim() < 3 or leaf.shape[-2] != q_len or not 0 <= leaf.shape[-1] - k_len <= MAX_SINKS:
        return None
    by_heads = convention.weights_by == "heads"
    if leaf.dim() == 4:
        if leaf.shape[1] == batch and leaf.shape[0] == heads and (by_heads or heads != batch):
            return leaf.transpose(0, 1)
        return leaf if leaf.shape[0] == batch else None
    if leaf.dim() == 5:
        return leaf.flatten(1, 2) if leaf.shape[0] == batch else None
    if leaf.dim() == 3 and leaf.shape[0] == batch * heads and (heads > 1 or leaf.shape[0] != batch):
        split = (heads, batch) if by_heads else (batch, heads)
        read = leaf.reshape(*split, *leaf.shape[1:])
        return read.transpose(0, 1) if by_heads else read
    return leaf if leaf.dim() == 3 and leaf.shape[0] == batch else None


def _chosen(maps: list[Map], output: Tensor | None) -> Map | None:
    """Choose the weights: rows that sum to 1, then the name, then the number of axes; never the only output."""

    def rank(one: Map) -> tuple[bool, bool, bool]:
        rows = one.read.detach().double()
        sums = bool(torch.isfinite(rows).all() and (rows >= 0).all() and ((rows.sum(-1) - 1).abs() < 0.05).all())
        return sums, bool(_WEIGHT_NAMES.match(one.name)), one.read.dim() == 4

    best = max(maps, key=rank, default=None)
    return best if best is not None and (any(rank(best)) or best.leaf is not output) else None


def top(result: Any) -> Iterator[tuple[str, Any]]:
    """Name what was returned, one level deep; "" where it has no names."""
    if isinstance(result, Mapping):
        yield from ((str(name), value) for name, value in result.items())
    elif hasattr(result, "_asdict"):
        yield from result._asdict().items()
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        yield from ((entry.name, getattr(result, entry.name)) for entry in dataclasses.fields(result))
    elif isinstance(result, tuple | list):
        yield from (("", value) for value in result)
    else:
        yield "", result


def leaves(result: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Name everything in what was returned, through tuples, mappings and dataclasses."""
    for inner, value in top(result):
        wrapped = isinstance(value, Mapping | tuple | list) or dataclasses.is_dataclass(value)
        if wrapped and depth < 3:
            yield from leaves(value, inner or name, depth + 1)
        else:
            yield inner or name, value


def _unreadable(entries: list[tuple[str, Any]], request: Request) -> str:
    batch, q_len = request.inputs.query.shape[:2]
    seen = (
        ", ".join(str(tuple(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for _, v in entries) or "nothing"
    )
    return f"no output of {batch} samples with {q_len} tokens among what was returned: {seen}"
