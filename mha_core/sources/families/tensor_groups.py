"""Which tensors of a state dict belong to one attention layer, by their names alone.

Tensors are grouped whose names share a prefix and are spelled as a library (or a person) spells q, k, v and the output.
Mask buffers, position ids, adapters (LoRA) and quantised matrices are no matrices of attention and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mha_core.sources.families.names import (
    INPUT_ROLES,
    ROLES,
    Family,
    Group,
    Shapes,
    by_grammar,
    by_library,
    family_by_grammar,
    registered,
)

_QUANTISED = (
    "weight_scale",
    "weight_scale_inv",
    "weight_packed",
    "weight.absmax",
    "weight.quant_state",
    "SCB",
    "scales",
)
_INPUTS = tuple(set(roles[:-1]) for roles in ROLES.values())  # {qkv}, {q, kv}, {q, k, v}


def _matrices(shapes: Shapes) -> dict[str, str]:
    """Paths of the matrices of a file -> their names; of a quantised or adapted module only the plain matrix."""
    found = {}
    for name, shape in shapes.items():
        path = name.removesuffix(".weight")
        quantised = any(f"{path}.{ending}" in shapes for ending in _QUANTISED)
        if len(shape) == 2 and 0 not in shape and not quantised:
            found[path.removesuffix(".base_layer")] = name  # peft keeps the matrix beside its adapters
    return found


def _with_biases(prefix: str, matrices: Mapping[str, str], shapes: Shapes) -> dict[str, str]:
    """Add the biases to a group's matrices: vectors only, so that a mask named `bias` is none."""
    start = f"{prefix}." if prefix else ""
    names = {role: f"{name[:-6]}bias" for role, name in matrices.items() if name.endswith("weight")}
    biases = {f"{role}_bias": name for role, name in names.items()}
    if "qkv" in matrices and biases.get("qkv_bias") not in shapes:
        biases |= {"q_bias": f"{start}q_bias", "v_bias": f"{start}v_bias"}  # BEiT and EVA in timm
    if "q" in matrices and matrices["q"].endswith("q_proj_weight"):
        biases["qkv_bias"] = f"{start}in_proj_bias"  # torch.nn.MultiheadAttention with kdim or vdim
    there = {role: name for role, name in biases.items() if len(shapes.get(name, ())) == 1}
    return {**matrices, **there}


def _group(paths: Mapping[str, str]) -> tuple[dict[Any, dict[str, str]], dict[tuple[str, str], dict[str, str]]]:
    """Sort matrices by the uses that libraries, and people, could make of their names: use -> role -> path."""
    library: dict[Any, dict[str, tuple[int, str]]] = {}
    grammar: dict[tuple[str, str], dict[str, tuple[int, str]]] = {}
    for path in paths:
        for key, role, rank in by_library(path):
            library.setdefault(key, {})[role] = min(library.get(key, {}).get(role, (rank, path)), (rank, path))
        if read := by_grammar(path):
            place, role, rank = read
            grammar.setdefault(place, {})[role] = min(grammar.get(place, {}).get(role, (rank, path)), (rank, path))

    def plain(groups: dict[Any, dict[str, tuple[int, str]]]) -> dict[Any, dict[str, str]]:
        return {key: {role: path for role, (_, path) in roles.items()} for key, roles in groups.items()}

    return plain(library), plain(grammar)


def group_tensors(shapes: Shapes, config: Mapping[str, Any]) -> Iterator[tuple[Family, Group]]:
    """Give every group with all its inputs, each matrix once: whole layers of libraries, of people, then cut ones."""
    paths = _matrices(shapes)
    library, grammar = _group(paths)
    taken: set[str] = set()
    names: set[str] = set()

    def build(prefix: str, stem: str, roles: Mapping[str, str], need_out: bool) -> Group | None:
        inputs = {role for role in roles if role in INPUT_ROLES}
        if inputs not in _INPUTS or taken & {roles[role] for role in inputs}:
            return None
        if need_out and ("out" not in roles or roles["out"] in taken):
            return None
        free = {role: paths[path] for role, path in roles.items() if path not in taken}
        return Group(prefix, stem, _with_biases(prefix, free, shapes), shapes, config)

    def take(group: Group, roles: Mapping[str, str]) -> Group:
        taken.update(roles.values())
        if group.name in names:  # two layers under one prefix: the second is called by its first matrix
            group = replace(group, prefix=min(path for role, path in roles.items() if role in INPUT_ROLES), stem="")
        names.add(group.name)
        return group

    for need_out in (True, False):
        for key in sorted(library):
            (at, _, prefix), roles = key, library[key]
            group = build(prefix, "", roles, need_out)
            if group and registered(at).accepts(group):
                yield registered(at), take(group, roles)
        for (prefix, stem), own in grammar.items():
            shared = grammar.get((prefix, ""), {})
            roles = own if "out" in own or "out" not in shared else {**own, "out": shared["out"]}
            for inputs in _INPUTS:
                chosen = {role: path for role, path in roles.items() if role in inputs or role == "out"}
                group = build(prefix, stem, chosen, need_out)
                if group and set(chosen) >= inputs:
                    yield family_by_grammar(group), take(group, chosen)
