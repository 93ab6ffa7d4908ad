"""The weights of a found layer, as this project's own record: float32, (out, in), q, k and v apart.

Letters: E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha_core.config import AttentionConfig
from mha_core.errors import MhaError, Suggestion
from mha_core.layouts import PACKINGS, AttentionWeights
from mha_core.sources.families.found_layer import FoundLayer
from mha_core.sources.families.head_counts import share_rows

Parts = dict[str, Tensor]


def _unreadable(layer: FoundLayer, problem: str) -> MhaError:
    name = layer.name or "the layer"
    return MhaError("checkpoint", name, "a layer whose shapes fit", problem=f"{name} cannot be read: {problem}")


def _choose_heads(layer: FoundLayer, num_heads: int | None, num_kv_heads: int | None) -> tuple[int, int, int]:
    """Settle H, Hkv, D.

    Raises:
        MhaError: the shapes leave no choice, H is not known, or a count does not fit.
    """
    if not layer.possible_heads:
        raise _unreadable(layer, "no number of heads fits its shapes; " + " ".join(layer.evidence))
    heads = layer.num_heads if num_heads is None else num_heads
    fitting = ", ".join(map(str, layer.possible_heads[:8]))
    try_ = [Suggestion.of(num_heads=heads) for heads in layer.possible_heads[:2]]
    if heads is None:
        problem = f"the number of heads of {layer.name or 'this layer'} is not in the weights; {fitting} would fit"
        raise MhaError("num_heads", None, f"one of {fitting}", try_, problem=problem)
    shared = share_rows(layer.q_rows, layer.kv_rows, heads)
    if shared is None:
        rows = f"{layer.q_rows} rows of q and {layer.kv_rows} rows of k and v"
        problem = f"{heads} heads do not fit {rows} of {layer.name or 'this layer'}; {fitting} would"
        raise MhaError("num_heads", heads, f"one of {fitting}", try_, problem=problem)
    if num_kv_heads not in (None, shared[0]):
        problem = (
            f"with {heads} heads of {shared[1]} channels, the {layer.kv_rows} rows of k and v are {shared[0]} heads"
        )
        change = [Suggestion.of(num_kv_heads=shared[0])]
        raise MhaError("num_kv_heads", num_kv_heads, str(shared[0]), change, problem=problem)
    return heads, *shared


def _unpack(layer: FoundLayer, parts: Parts, config: AttentionConfig) -> Parts:
    """Cut fused matrices and biases apart; roles q, k, v, out and their biases remain."""
    apart = dict(parts)
    for ending in ("", "_bias"):
        if f"qkv{ending}" in apart:
            packing = layer.packing if layer.packing in PACKINGS else "stacked"
            cut = PACKINGS[packing][1](apart.pop(f"qkv{ending}"), config)
            apart = dict(zip((f"q{ending}", f"k{ending}", f"v{ending}"), cut, strict=True)) | apart
        if f"kv{ending}" in apart:
            k, v = apart.pop(f"kv{ending}").chunk(2)
            apart |= {f"k{ending}": k, f"v{ending}": v}
    return apart


def _check_shapes(layer: FoundLayer, parts: Parts) -> None:
    """Raise MhaError unless every matrix and bias has the shape that the layer's sizes ask for."""
    rows, kv_rows = layer.q_rows, layer.kv_rows
    need = {
        "q": (rows, layer.embed_dim),
        "k": (kv_rows, layer.key_dim),
        "v": (kv_rows, layer.value_dim),
        "kv": (2 * kv_rows, layer.key_dim),
        "qkv": (rows + 2 * kv_rows, layer.embed_dim),
        "out": (layer.embed_dim, rows),
    }
    for role, tensor in parts.items():
        whole = need[role.removesuffix("_bias")]
        expected = whole[:1] if role.endswith("_bias") else whole
        if tuple(tensor.shape) != expected:
            got = f"{layer.tensors[role]} is {tuple(tensor.shape)}"
            raise _unreadable(layer, f"{got}{', turned' if layer.transposed else ''}, but {expected} would fit")


def read_weights(
    layer: FoundLayer,
    tensor: Callable[[str], Tensor],
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
) -> tuple[AttentionConfig, AttentionWeights]:
    """Read a found layer.

    Args:
        layer: from `find_layers`. tensor: gives the tensor of a name.
        num_heads: H, where it does not follow from the file, or to read it otherwise.
        num_kv_heads: Hkv; it follows from H and the rows, and is only checked.

    Returns:
        The configuration (separate projections, without scale and positions: they are not in the weights) and the
        weights, float32. A bias that is missing beside others that exist is zeros.

    Raises:
        MhaError: field "num_heads" or "num_kv_heads", a count is not known or does not fit; field "checkpoint", the
            layer has no output projection or a matrix does not fit the others.
    """
    heads, kv_heads, head_dim = _choose_heads(layer, num_heads, num_kv_heads)
    if "out" not in layer.tensors:
        raise _unreadable(layer, "it has no output projection")
    parts = {role: tensor(name).detach().to(torch.float32) for role, name in layer.tensors.items()}
    if layer.transposed:
        parts = {role: part.t() if part.ndim == 2 else part for role, part in parts.items()}
    _check_shapes(layer, parts)
    sizes: dict[str, Any] = {} if heads * head_dim == layer.embed_dim else {"head_size": head_dim}
    config = AttentionConfig(
        layer.embed_dim,
        heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        bias=any(role.endswith("_bias") for role in parts),
        kdim=None if layer.key_dim == layer.embed_dim else layer.key_dim,
        vdim=None if layer.value_dim == layer.embed_dim else layer.value_dim,
        **sizes,
    )
    apart = {role: part.contiguous() for role, part in _unpack(layer, parts, config).items()}
    if config.bias:
        zeros = {f"{role}_bias": torch.zeros(apart[role].shape[0]) for role in ("q", "k", "v", "out")}
        apart = zeros | apart
    return config, AttentionWeights(**apart)
