"""Find attention layers in any state dict, by the names and shapes of its tensors; no values are read.

`find_layers` measures each group of tensors that `tensor_groups` gives, and says what follows and from what. Names are
in `names`, head counts in `head_counts`, values in `layer_weights`; what a caller needs of them is here too.

Letters: E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mha_core.sources.families.found_layer import FilePacking, FoundLayer, Kind
from mha_core.sources.families.head_counts import Claim, HeadTables, config_claims, count_heads, share_rows
from mha_core.sources.families.layer_weights import read_weights
from mha_core.sources.families.names import FAMILIES, INPUT_ROLES, Family, Group, Shapes
from mha_core.sources.families.tensor_groups import group_tensors

__all__ = ["FAMILIES", "FoundLayer", "find_layers", "read_weights"]


@dataclass(frozen=True)
class _Sizes:
    """What follows from the shapes, and sentences on what does not fit."""

    embed_dim: int
    key_dim: int
    value_dim: int
    q_rows: int
    kv_rows: int
    problems: tuple[str, ...]


def _measure(group: Group, transposed: bool) -> _Sizes:
    """Read the sizes off the shapes; rows are 0 where they do not follow."""

    def turn(role: str) -> tuple[int, int]:
        rows, columns = group.shape(role)
        return (columns, rows) if transposed else (rows, columns)

    out = turn("out") if "out" in group.tensors else None
    problems = []
    if "qkv" in group.tensors:
        rows, width = turn("qkv")
        q_rows, kv_rows = _split_rows(rows, width, out)
        sizes = (width, width, width)
        if not q_rows:
            problems.append(f"{_spell(group, 'qkv')} does not divide into q, k and v of one layer.")
    else:
        q_rows, width = turn("q")
        k_role, v_role = ("kv", "kv") if "kv" in group.tensors else ("k", "v")
        (k_rows, key_dim), (v_rows, value_dim) = turn(k_role), turn(v_role)
        sizes = (width, key_dim, value_dim)
        kv_rows = k_rows if k_rows == v_rows else 0
        if not kv_rows:
            problems.append(f"{_spell(group, 'k')} and {_spell(group, 'v')} differ in rows.")
        if k_role == "kv":
            kv_rows = k_rows // 2 if k_rows % 2 == 0 else 0
            problems += [] if kv_rows else [f"{_spell(group, 'kv')} has an odd number of rows for k and v."]
    if out is None:
        problems.append("No output projection was found under this prefix.")
    elif q_rows and out != (width, q_rows):
        problems.append(f"{_spell(group, 'out')} does not fit: ({width}, {q_rows}) as (out, in) would.")
    return _Sizes(*sizes, q_rows, kv_rows, (*problems, *_misfit_biases(group, transposed)))


def _split_rows(rows: int, width: int, out: tuple[int, int] | None) -> tuple[int, int]:
    """Divide the rows of a fused matrix: H*D are the columns of the output matrix, the rest is k and v."""
    if out and out[0] == width and rows > out[1] and (rows - out[1]) % 2 == 0 and rows <= 3 * out[1]:
        return out[1], (rows - out[1]) // 2
    if rows == 3 * width or (out is None and rows % 3 == 0):
        return rows // 3, rows // 3
    return 0, 0


def _misfit_biases(group: Group, transposed: bool) -> list[str]:
    problems = []
    for role in [role for role in group.tensors if role.endswith("_bias")]:
        matrix = group.shape(role.removesuffix("_bias"))
        if matrix and group.shape(role) != (matrix[1 if transposed else 0],):
            problems.append(f"{_spell(group, role)} does not fit {_spell(group, role.removesuffix('_bias'))}.")
    return problems


def _spell(group: Group, role: str) -> str:
    return f"{group.tensors[role]} {group.shape(role)}"


def _is_transposed(group: Group, family: Family) -> bool:
    """Whether matrices are (in, out): by the family, or because the biases fit the columns only."""
    votes = [
        (bias[0] == matrix[0], bias[0] == matrix[1])
        for role in ("q", "k", "v", "kv", "qkv", "out")
        if (matrix := group.shape(role)) and (bias := group.shape(f"{role}_bias"))
    ]
    if family.transposed:
        return not any(rows and not columns for rows, columns in votes)
    return any(columns and not rows for rows, columns in votes) and not any(
        rows and not columns for rows, columns in votes
    )


_ROLE_ORDER = [f"{role}{ending}" for ending in ("", "_bias") for role in (*INPUT_ROLES, "out")]
_CROSS = re.compile(
    r"cross_?att|cross_?attn|^cross$|xattn|enc_?dec_?att|dec_?enc_?att|encoder_decoder_att|^encoder_att|^enc_att|"
    r"^src_att|^attn2$|^inter_?att|^mem(ory)?_att|^encoder_attn$",
    re.IGNORECASE,
)


def _kind(group: Group, sizes: _Sizes) -> tuple[Kind, str]:
    """Self- or cross-attention, by the name inside the layer first, and why."""
    parts = group.name.split(".")
    last_number = max((at for at, part in enumerate(parts) if part.isdigit()), default=-1)
    inside = parts[last_number + 1 :]
    if any(_CROSS.search(part) for part in [*inside, *([] if any("att" in p.lower() for p in inside) else parts)]):
        return "cross", "Its name says cross-attention."
    if not sizes.problems and (sizes.key_dim, sizes.value_dim) != (sizes.embed_dim, sizes.embed_dim):
        return "cross", "Its keys or values have another width than its queries, so they come from elsewhere."
    if "multihead_attn" in inside:
        sibling = ".".join([*parts[: parts.index("multihead_attn", last_number + 1)], "self_attn."])
        if any(name.startswith(sibling) for name in group.shapes):
            return "cross", "It is the second attention beside self_attn, as in torch's decoder layer."
        return "unknown", "Its name does not say whether it is self- or cross-attention."
    if any("att" in part.lower() for part in inside) or (group.prefix and "qkv" in group.tensors):
        return "self", ""
    named = any("att" in part.lower() and part != "attn_layers" for part in parts)
    return ("self", "") if named else ("unknown", "Its name does not say whether it is self- or cross-attention.")


def _packing(group: Group, family: Family) -> tuple[FilePacking, str]:
    """Order inside the fused matrix, and what says so."""
    if "kv" in group.tensors:
        return "kv_stacked", f"{_spell(group, 'kv')} is read as [k | v]."
    if "qkv" not in group.tensors:
        return "separate", ""
    own = group.config.get("qkv_layout") if family.name == "mha_lab" else None
    packing: FilePacking = "interleaved" if own == "interleaved" else family.packing
    order = "per key/value head: its q, then k, then v" if packing == "interleaved" else "[q | k | v]"
    by = "as the config says" if own else "as the family keeps it; the shapes alone do not show it"
    return packing, f"{_spell(group, 'qkv')} is read as {order}, {by}."


_BESIDE = {
    "bias_k": "bias_k and bias_v, one more key and value, are not among the four projections and are left out.",
    "q_norm.weight": "q_norm and k_norm change q and k after the projections; they are left out.",
}


def _claims(group: Group, family: Family, sizes: _Sizes, tables: HeadTables) -> tuple[list[Claim], list[str]]:
    """Everything that says something about the head counts, surest first."""

    def kv_of(heads: int) -> int | None:
        shared = share_rows(sizes.q_rows, sizes.kv_rows, heads)
        return shared and shared[0]

    claims = list(tables.claims(group.prefix, sizes.q_rows))
    widths = frozenset((sizes.embed_dim, sizes.key_dim, sizes.value_dim))
    of_config, notes = config_claims(group.config, group.name, widths, kv_of)
    claims += of_config
    if family.name == "gpt_bigcode" and sizes.kv_rows != sizes.q_rows:
        claims.append(Claim("GPT-BigCode has one key/value head where k and v are smaller", None, sizes.kv_rows))
    return (claims + tables.rotary_claims(group.prefix) if family.whole_rotary else claims), notes


def _describe(family: Family, group: Group, tables: HeadTables) -> FoundLayer:
    transposed = _is_transposed(group, family)
    sizes = _measure(group, transposed)
    kind, why_kind = _kind(group, sizes)
    packing, why_packing = _packing(group, family)
    claims, notes = _claims(group, family, sizes, tables) if sizes.q_rows and sizes.kv_rows else ([], [])
    counts = count_heads(sizes.q_rows, sizes.kv_rows, claims)
    tensors = {role: group.tensors[role] for role in sorted(group.tensors, key=_ROLE_ORDER.index)}
    spelled = ", ".join(name for role, name in tensors.items() if not role.endswith("_bias"))
    turned = "Matrices are kept (in, out): the biases or the family's shapes say so." if transposed else ""
    start = f"{group.prefix}." if group.prefix else ""
    beside = [sentence for name, sentence in _BESIDE.items() if f"{start}{name}" in group.shapes]
    note = f"Note: {family.note}." if family.note and (packing != "separate" or family.name == "t5") else ""
    said = (f"Named as in {family.summary}: {spelled}.", why_kind, turned, why_packing, note)
    return FoundLayer(
        name=group.name,
        family=family.name,
        kind=kind,
        tensors=tensors,
        packing=packing,
        transposed=transposed,
        embed_dim=sizes.embed_dim,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        q_rows=sizes.q_rows,
        kv_rows=sizes.kv_rows,
        num_heads=counts.num_heads,
        num_kv_heads=counts.num_kv_heads,
        head_dim=counts.head_dim,
        evidence=tuple(filter(None, (*said, *sizes.problems, *counts.evidence, *notes, *beside))),
        possible_heads=counts.possible,
    )


def _in_order(layer: FoundLayer) -> list[tuple[int, int | str]]:
    """Order by name, numbers by their value: layer 2 before layer 10."""
    parts = re.split(r"(\d+)", layer.name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def find_layers(shapes: Shapes, config: Mapping[str, Any] | None = None) -> tuple[FoundLayer, ...]:
    """Find the attention layers of a state dict.

    Args:
        shapes: tensor name -> shape. config: the model's, with any library's names for head counts; may be nested.

    Returns:
        The layers, layer 2 before layer 10. A layer whose shapes do not fit one another is there too: its evidence
        says what does not fit.
    """
    tables = HeadTables.of(shapes)
    groups = group_tensors(shapes, config if isinstance(config, Mapping) else {})
    return tuple(sorted((_describe(family, group, tables) for family, group in groups), key=_in_order))
