"""Where q, k and v sit inside the parameters of known libraries, and how to move them.

`AttentionWeights` is the neutral form: four matrices and their biases. A `Layout` packs it into the parameter names and
shapes of one library's attention module and unpacks it again; both directions are pure and differentiable.

Axes: E width of the query input, H query heads, Hkv key/value heads, D head_dim, G = H / Hkv query heads per group.
All matrices are (out, in), as `torch.nn.Linear` keeps them, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import torch
from einops import rearrange
from torch import Tensor

from mha_core.config import AttentionConfig
from mha_core.errors import MhaError

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class AttentionWeights:
    """The four projections: q (H*D, E), k (Hkv*D, kdim), v (Hkv*D, vdim), out (E, H*D), and biases or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    out_bias: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> AttentionWeights:
        """Apply `change` to every tensor that is there."""
        there = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: change(tensor) for name, tensor in there.items() if tensor is not None})


@dataclass(frozen=True)
class Layout:
    """One library's way of keeping attention weights.

    `pack` gives a state dict for that library's module; `unpack` reads one, given the sizes.
    """

    name: str
    summary: str
    source: str
    pack: Callable[[AttentionWeights, AttentionConfig], StateDict]
    unpack: Callable[[Mapping[str, Tensor], AttentionConfig], AttentionWeights]


def pack_stacked(q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig) -> Tensor:
    """Stack q, k, v rows: [q | k | v], (H*D + 2*Hkv*D, ...)."""
    return torch.cat([q, k, v])


def unpack_stacked(fused: Tensor, config: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [q | k | v] apart along the first axis."""
    kv_rows = config.kv_heads * config.head_dim
    q, k, v = torch.split(fused, [config.num_heads * config.head_dim, kv_rows, kv_rows])
    return q, k, v


def pack_interleaved(q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig) -> Tensor:
    """Interleave per key/value head: its G query heads, then its k, then its v, (Hkv*(G + 2)*D, ...)."""
    by_group = [rearrange(t, "(n g d) ... -> n g d ...", n=config.kv_heads, d=config.head_dim) for t in (q, k, v)]
    return rearrange(torch.cat(by_group, dim=1), "n g d ... -> (n g d) ...")


def unpack_interleaved(fused: Tensor, config: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Undo `pack_interleaved`."""
    groups = config.num_heads // config.kv_heads
    by_group = rearrange(fused, "(n g d) ... -> n g d ...", n=config.kv_heads, g=groups + 2)
    q, k, v = (rearrange(t, "n g d ... -> (n g d) ...") for t in torch.split(by_group, [groups, 1, 1], dim=1))
    return q, k, v


Packing = tuple[
    Callable[[Tensor, Tensor, Tensor, AttentionConfig], Tensor],
    Callable[[Tensor, AttentionConfig], tuple[Tensor, Tensor, Tensor]],
]
PACKINGS: dict[str, Packing] = {
    "stacked": (pack_stacked, unpack_stacked),
    "interleaved": (pack_interleaved, unpack_interleaved),
}


def pack_qkv(weights: AttentionWeights, config: AttentionConfig, packing: str) -> tuple[Tensor, Tensor | None]:
    """Give the fused matrix and bias of the named packing."""
    pack, _ = PACKINGS[packing]
    matrix = pack(weights.q, weights.k, weights.v, config)
    if weights.q_bias is None or weights.k_bias is None or weights.v_bias is None:
        return matrix, None
    return matrix, pack(weights.q_bias, weights.k_bias, weights.v_bias, config)


def unpack_qkv(
    matrix: Tensor, bias: Tensor | None, out: Tensor, out_bias: Tensor | None, config: AttentionConfig, packing: str
) -> AttentionWeights:
    """Read a fused matrix and bias of the named packing."""
    _, unpack = PACKINGS[packing]
    q_bias, k_bias, v_bias = (None, None, None) if bias is None else unpack(bias, config)
    return AttentionWeights(*unpack(matrix, config), out, q_bias, k_bias, v_bias, out_bias)


def _fused_layout(
    name: str, summary: str, source: str, packing: str, fused: str, out: str, *, transposed: bool = False
) -> Layout:
    """A layout with one fused matrix `fused` and one output matrix `out`; Conv1D keeps them (in, out)."""

    def turn(matrix: Tensor) -> Tensor:
        return matrix.t() if transposed else matrix

    def pack(weights: AttentionWeights, config: AttentionConfig) -> StateDict:
        matrix, bias = pack_qkv(weights, config, packing)
        state = {f"{fused}weight": turn(matrix), f"{fused}bias": bias}
        state |= {f"{out}weight": turn(weights.out), f"{out}bias": weights.out_bias}
        return {key: tensor for key, tensor in state.items() if tensor is not None}

    def unpack(state: Mapping[str, Tensor], config: AttentionConfig) -> AttentionWeights:
        matrix, out_matrix = (turn(_take(state, key, name)) for key in (f"{fused}weight", f"{out}weight"))
        return unpack_qkv(matrix, state.get(f"{fused}bias"), out_matrix, state.get(f"{out}bias"), config, packing)

    return Layout(name, summary, source, pack, unpack)


def _separate_layout(name: str, summary: str, source: str, names: tuple[str, str, str, str]) -> Layout:
    """A layout with one matrix each for q, k, v and the output."""

    def pack(weights: AttentionWeights, config: AttentionConfig) -> StateDict:
        matrices = zip(names, (weights.q, weights.k, weights.v, weights.out), strict=True)
        biases = zip(names, (weights.q_bias, weights.k_bias, weights.v_bias, weights.out_bias), strict=True)
        state = {f"{key}.weight": matrix for key, matrix in matrices}
        return state | {f"{key}.bias": bias for key, bias in biases if bias is not None}

    def unpack(state: Mapping[str, Tensor], config: AttentionConfig) -> AttentionWeights:
        q, k, v, out = (_take(state, f"{key}.weight", name) for key in names)
        return AttentionWeights(q, k, v, out, *(state.get(f"{key}.bias") for key in names))

    return Layout(name, summary, source, pack, unpack)


def _take(state: Mapping[str, Tensor], key: str, layout: str) -> Tensor:
    if key not in state:
        have = ", ".join(sorted(state)) or "nothing"
        raise MhaError(
            "layout", layout, f"a state dict with {key}", problem=f"layout {layout} needs {key}; there is {have}"
        )
    return state[key]


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        _separate_layout("separate", "one matrix each", "this project", ("wq", "wk", "wv", "fc_out")),
        _fused_layout("stacked", "[q | k | v]", "this project, projection='fused'", "stacked", "qkv_proj.", "fc_out."),
        _fused_layout(
            "interleaved", "per head q, k, v", "this project, projection='fused'", "interleaved", "qkv_proj.", "fc_out."
        ),
        _fused_layout(
            "torch_mha",
            "[q | k | v]; wants kdim = vdim = H·D = embed_dim",
            "torch.nn.MultiheadAttention.in_proj_weight",
            "stacked",
            "in_proj_",
            "out_proj.",
        ),
        _fused_layout(
            "gpt2",
            "[q | k | v], transposed: Conv1D keeps (in, out)",
            "transformers GPT2Attention.c_attn",
            "stacked",
            "c_attn.",
            "c_proj.",
            transposed=True,
        ),
        _fused_layout(
            "gpt_neox",
            "per head q, k, v",
            "transformers GPTNeoXAttention.query_key_value",
            "interleaved",
            "query_key_value.",
            "dense.",
        ),
        _separate_layout(
            "llama",
            "one matrix each, Hkv rows for k and v",
            "transformers LlamaAttention",
            ("q_proj", "k_proj", "v_proj", "o_proj"),
        ),
    )
}
