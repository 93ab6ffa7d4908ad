"""The matrices of one found layer, cut into q, k, v and out, each as stored: the numbers keep their format.

Unlike `read_weights` it also works where the number of heads is not known, as far as the layout allows: a stacked
matrix is cut by its rows, an interleaved one stays whole. At most one layer is held at a time.

Letters: E embed_dim, H heads, Hkv key/value heads, D head_dim, G = H / Hkv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.sources.families.found_layer import FoundLayer
from mha_core.sources.families.head_counts import share_rows

_MATRICES = ("q", "k", "v", "kv", "qkv", "out")
ORDER = (*_MATRICES, *(f"{role}_bias" for role in _MATRICES))


@dataclass(frozen=True)
class Heads:
    """Head counts that fit a layer: H, Hkv and D."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False)
class Block:
    """One matrix (out, in) of a layer, or one bias (out, 1), as stored.

    Attributes:
        role: q, k, v, out; qkv where the fused matrix cannot be cut; with "_bias" for a bias.
        tensor: name in the file.
        heads: number of heads along its rows ("out": along its columns); None where it is not known.
        packed_rows: rows of the fused matrix it comes from; None where it is a matrix of its own.
    """

    role: str
    tensor: str
    matrix: Tensor
    heads: int | None
    packed_rows: int | None = None


def settle_heads(layer: FoundLayer, num_heads: int | None = None, num_kv_heads: int | None = None) -> Heads | None:
    """Give the head counts of a layer, as found or as given; None where they are not known or do not fit."""
    heads = layer.num_heads if num_heads is None else num_heads
    shared = None if heads is None else share_rows(layer.q_rows, layer.kv_rows, heads)
    if heads is None or shared is None or num_kv_heads not in (None, shared[0]):
        return None
    return Heads(heads, *shared)


def cut_fused(fused: Tensor, packing: str, rows: tuple[int, int], heads: Heads | None) -> tuple[Tensor, ...] | None:
    """Cut a fused matrix (H*D + 2*Hkv*D, ...) into q, k and v.

    Args:
        packing: "stacked" or "interleaved". rows: H*D and Hkv*D, or 0 where they do not follow.

    Returns:
        q, k, v; None where the cuts are not known.
    """
    if packing == "interleaved":
        if heads is None:
            return None
        groups = heads.num_heads // heads.num_kv_heads
        by_group = fused.reshape(heads.num_kv_heads, groups + 2, heads.head_dim, *fused.shape[1:])
        parts = torch.split(
            by_group, [groups, 1, 1], dim=1
        )  # (Hkv, G + 2, D, ...) -> (Hkv, G or 1, D, ...) three times
        return tuple(part.reshape(-1, *fused.shape[1:]) for part in parts)
    q_rows, kv_rows = rows if all(rows) else (len(fused) // 3, len(fused) // 3)
    fits = q_rows + 2 * kv_rows == len(fused)
    return torch.split(fused, [q_rows, kv_rows, kv_rows]) if fits else None


def _cut(role: str, part: Tensor, layer: FoundLayer, heads: Heads | None) -> dict[str, Tensor]:
    """Cut one tensor of the file, (out, in) or (out,), by its role."""
    kind, ending = (role.removesuffix("_bias"), "_bias") if role.endswith("_bias") else (role, "")
    if kind == "kv" and len(part) % 2 == 0:
        return dict(zip((f"k{ending}", f"v{ending}"), part.chunk(2), strict=True))
    if kind == "qkv":
        packing = "interleaved" if layer.packing == "interleaved" else "stacked"
        apart = cut_fused(part, packing, (layer.q_rows, layer.kv_rows), heads)
        if apart is not None:
            return dict(zip((f"q{ending}", f"k{ending}", f"v{ending}"), apart, strict=True))
    return {role: part}


def turned(layer: FoundLayer, part: Tensor) -> Tensor:
    """Give a stored tensor as (out, in)."""
    return part.t() if layer.transposed and part.ndim == 2 else part


def layer_blocks(layer: FoundLayer, tensor: Callable[[str], Tensor], heads: Heads | None) -> tuple[Block, ...]:
    """Read the matrices and biases of a layer.

    Args:
        tensor: gives the stored tensor of a name. heads: as `settle_heads` gives them.

    Raises:
        MhaError: a tensor cannot be read.
    """
    found = []
    for role, name in layer.tensors.items():
        part = turned(layer, tensor(name).detach())
        if part.is_complex() or part.ndim not in (1, 2):
            continue
        for cut_role, cut in _cut(role, part, layer, heads).items():
            has_heads = cut_role.removesuffix("_bias") in ("q", "k", "v") or cut_role == "out"
            count = None
            if heads is not None and has_heads:
                count = heads.num_kv_heads if cut_role[0] in "kv" else heads.num_heads
            packed = None if cut_role == role else part.shape[0]
            matrix = cut if cut.ndim == 2 else cut.unsqueeze(1)
            found.append(Block(cut_role, name, matrix, count, packed))
    return tuple(sorted(found, key=lambda block: ORDER.index(block.role)))
