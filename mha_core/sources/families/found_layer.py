"""One attention layer of a state dict, as found by names and shapes: where its matrices are and what follows from them.

Holds no values: `layer_weights` reads them, `families` finds the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["self", "cross", "unknown"]
FilePacking = Literal["separate", "stacked", "interleaved", "kv_stacked"]


@dataclass(frozen=True)
class FoundLayer:
    """One attention layer found in a state dict by names and shapes.

    Attributes:
        name: common prefix of its tensors, e.g. "encoder.layer.0.attention"; empty where they have none.
        family: key of FAMILIES.
        kind: self- or cross-attention, or "unknown" where neither name nor shapes say it.
        tensors: role -> tensor name. Roles: q, k, v, out, qkv (one matrix for all three), kv (one for two), and the
            same with "_bias"; only those that exist. `qkv_bias` may stand beside separate matrices, and `q_bias` beside
            a fused one.
        packing: order inside the fused matrix, by the family, as in `mha_core.layouts`; "kv_stacked" is q, and [k | v].
        transposed: matrices are kept (in, out).
        embed_dim, key_dim, value_dim: widths E, kdim, vdim of the inputs.
        q_rows, kv_rows: H*D and Hkv*D; 0 where they do not follow.
        num_heads, num_kv_heads, head_dim: H, Hkv, D; None where they do not follow.
        evidence: one sentence each: from what the family, the layout and the head counts follow, or that they do not.
        possible_heads: values of H that fit the shapes, most likely first.
    """

    name: str
    family: str
    kind: Kind
    tensors: Mapping[str, str]
    packing: FilePacking
    transposed: bool
    embed_dim: int
    key_dim: int
    value_dim: int
    q_rows: int
    kv_rows: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    evidence: tuple[str, ...]
    possible_heads: tuple[int, ...]
