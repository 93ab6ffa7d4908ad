"""Verdicts on gradient norms that somebody recorded elsewhere, read from a JSON of names and norms.

There is no Xavier start to compare with, so a norm is compared with the median of the file; layers and shapes differ
there, so the bar is wider than in verdicts.py. Names of known libraries are recognised, and the zeros of one layer's
q, k, v and out are read together: which of them are zero says which factor is.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mha_core.errors import MhaError
from mha_core.lenses.verdicts import CAUSES, VerdictKind

MAX_NORM_BYTES = 2 * 2**20
MAX_NORMS = 20_000
MAX_NAME = 300
MAX_DEPTH = 8
FAR_IN_A_FILE = 1000.0
RULES = (
    "Dead: exactly 0, or no gradient at all. Vanishing or exploding: more than "
    f"{FAR_IN_A_FILE:.0f} times smaller or larger than the median of the file, of gradient norm over weight norm where "
    "weight norms are given; NaN and Inf count as exploding. One file holds layers of all shapes, so the bar is ten "
    "times that of the experiment's own verdicts."
)
NEED = (
    'an object {"name": norm}, a list of {"name": ..., "norm": ...}, or {"name": {"grad": norm, "weight": norm}}; '
    'NaN and Infinity may be spelled as words, null means "no gradient"'
)
EXAMPLE = {
    "layers.0.attn.q_proj.weight": {"grad": 0.41, "weight": 22.6},
    "layers.0.attn.k_proj.weight": {"grad": 0.38, "weight": 22.6},
    "layers.0.attn.k_proj.bias": {"grad": 3.1e-9, "weight": 0.2},
    "layers.0.attn.v_proj.weight": {"grad": 1.9, "weight": 22.6},
    "layers.0.attn.o_proj.weight": {"grad": 2.2, "weight": 22.6},
    "layers.1.attn.q_proj.weight": {"grad": 0.0, "weight": 22.6},
    "layers.1.attn.k_proj.weight": {"grad": 0.0, "weight": 22.6},
    "layers.1.attn.v_proj.weight": {"grad": 0.0, "weight": 22.6},
    "layers.1.attn.o_proj.weight": {"grad": 2.4, "weight": 0.0},
    "layers.2.attn.q_proj.weight": {"grad": 1.2e-7, "weight": 22.6},
    "layers.2.attn.k_proj.weight": {"grad": "NaN", "weight": 22.6},
}
# The last word of a name that says which projection it is, per role; fused ones have several roles at once.
ROLES = {
    "q": ("wq", "w_q", "q_proj", "q_lin", "query", "to_q", "q"),
    "k": ("wk", "w_k", "k_proj", "k_lin", "key", "to_k", "k"),
    "v": ("wv", "w_v", "v_proj", "v_lin", "value", "to_v", "v"),
    "out": ("wo", "w_o", "o_proj", "out_proj", "out_lin", "fc_out", "c_proj", "to_out", "dense", "output", "out", "o"),
    "qkv": ("in_proj", "qkv_proj", "qkv", "c_attn", "query_key_value", "to_qkv", "wqkv"),
}
_ROLE_OF = {word: role for role, words in ROLES.items() for word in words}
_ENDING = re.compile(r"^(.*?)[._]?(weight|bias|kernel)?$")
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "+inf": math.inf}


@dataclass(frozen=True)
class Recorded:
    """One entry of a file: the gradient's norm (None: no gradient was recorded) and the weight's, if given."""

    name: str
    norm: float | None
    weight_norm: float | None = None

    @property
    def size(self) -> float | None:
        """What is compared: norm over weight norm where there is one, the norm otherwise."""
        if self.norm is None or not self.weight_norm:
            return self.norm
        return self.norm / self.weight_norm


@dataclass(frozen=True)
class RecordedVerdict:
    """A verdict on one entry; `relative` is its size over the median of the file, None where that is no number."""

    name: str
    norm: float | None
    weight_norm: float | None
    kind: VerdictKind
    reason: str
    relative: float | None = None


def parse_norms(raw: str | bytes) -> tuple[Recorded, ...]:
    """Read a file of norms.

    Raises:
        MhaError: field "norms": too large, not JSON, or not norms; it says where.
    """
    if len(raw) > MAX_NORM_BYTES:
        raise MhaError("norms", f"{len(raw):,} bytes", f"at most {MAX_NORM_BYTES:,} bytes")
    try:
        loaded = json.loads(raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw)
    except (ValueError, RecursionError) as error:
        problem = f"this is not JSON: {str(error)[:120]}"
        raise MhaError("norms", "a file that is not JSON", NEED, problem=problem) from error
    entries: list[Recorded] = []
    for entry in _entries(loaded, "", 0):
        entries.append(entry)
        if len(entries) > MAX_NORMS:
            raise MhaError("norms", f"more than {MAX_NORMS:,} names", f"at most {MAX_NORMS:,} names")
    if not entries:
        raise MhaError("norms", "no norm at all", NEED, problem="there is no norm in this file")
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MhaError("norms", twice, "every name once", problem=f"the name {twice[:80]!r} is there twice")
    return tuple(entries)


def _entries(value: Any, prefix: str, depth: int) -> Iterator[Recorded]:
    if depth > MAX_DEPTH:
        raise MhaError("norms", f"more than {MAX_DEPTH} levels", NEED)
    if isinstance(value, dict):
        yield from _from_object(value, prefix, depth)
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, dict | list):
                raise _wrong(prefix or "the list", item)
            yield from _entries(item, prefix, depth + 1)
    else:
        raise _wrong(prefix or "the file", value)


def _from_object(value: dict[str, Any], prefix: str, depth: int) -> Iterator[Recorded]:
    if isinstance(value.get("name"), str) and "norm" in value:
        name = _join(prefix, value["name"])
        yield Recorded(name, _number(name, value["norm"]), _weight(name, value.get("weight")))
    elif prefix and "grad" in value and set(value) <= {"grad", "weight"} and not isinstance(value["grad"], dict):
        yield Recorded(prefix, _number(prefix, value["grad"]), _weight(prefix, value.get("weight")))
    else:
        for key, item in value.items():
            name = _join(prefix, key)
            if isinstance(item, dict | list):
                yield from _entries(item, name, depth + 1)
            else:
                yield Recorded(name, _number(name, item))


def _join(prefix: str, name: str) -> str:
    whole = f"{prefix}.{name}" if prefix else name
    if len(whole) > MAX_NAME:
        raise MhaError("norms", f"a name of {len(whole)} characters", f"names of at most {MAX_NAME} characters")
    return whole


def _number(name: str, value: Any) -> float | None:
    """Read a norm; None stays None."""
    if value is None:
        return None
    number: float | None = None
    if isinstance(value, str):
        number = _WORDS.get(value.strip().lower())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if number is None or number < 0:
        raise _wrong(name, value)
    return number


def _weight(name: str, value: Any) -> float | None:
    number = _number(f"weight of {name}", value)
    return number if number is not None and math.isfinite(number) else None


def _wrong(name: str, value: Any) -> MhaError:
    got = repr(value)[:60]
    problem = f"{name[:80]} is {got}; a norm is a number of at least 0, NaN, Infinity or null"
    return MhaError("norms", got, NEED, problem=problem)


def role_of(name: str) -> tuple[str, str] | None:
    """Recognise a projection: (prefix of its layer, role), the role with "_bias" for a bias; None for other names.

    Roles are q, k, v, out, and qkv for a fused matrix.
    """
    match = _ENDING.match(name)
    assert match is not None, "the pattern matches anything"
    stem, kind = match.group(1), match.group(2)
    parts = stem.split(".")
    if parts[-1].isdigit() and len(parts) > 1:  # nn.Sequential: to_out.0
        parts.pop()
    role = _ROLE_OF.get(parts[-1].lower())
    if role is None:
        return None
    before = [part for part in parts[:-1] if part not in ("self", "output")]  # BERT: attention.self.query
    return ".".join(before), role + ("_bias" if kind == "bias" else "")


def chain_rule(dead: Sequence[str], there: Sequence[str]) -> str:
    """Say which factor must be zero, from which of one layer's q, k, v, out matrices have no gradient.

    Args:
        dead: roles with a gradient of exactly 0. there: all roles of the layer in the file.
    """
    zero, learns = set(dead) & set("qkv") | set(dead) & {"out"}, set(there) - set(dead)
    if {"q", "k", "v"} <= zero and "out" in learns:
        return f"q, k and v get nothing but out does: {CAUSES['out']}."
    if {"q", "k", "v", "out"} <= zero:
        return "Nothing reaches this layer: dL/dy is zero (detached, frozen, or a zero above it), or all four are zero."
    if {"q", "k", "out"} <= zero and "v" in learns:
        return f"v gets something, q, k and out do not: {CAUSES['v in context']}; {CAUSES['v']}."
    if {"q", "k"} <= zero and "v" in learns:
        return (
            "v gets something, q and k do not: the softmax passes nothing on. It is saturated (one-hot), all values "
            "are the same, or each query has one key only; or both q and k are zero."
        )
    if zero == {"q"} and "k" in learns:
        return f"Only q gets nothing: {CAUSES['k']} (or all keys are the same)."
    if zero == {"k"} and "q" in learns:
        return f"Only k gets nothing: {CAUSES['q']}."
    if zero == {"out"} and "v" in learns:
        return f"Only out gets nothing: {CAUSES['v in context']}."
    return ""


def judge_norms(entries: Sequence[Recorded]) -> tuple[RecordedVerdict, ...]:
    """Judge every entry of a file, in its order."""
    roles = {entry.name: role_of(entry.name) for entry in entries}
    layers: dict[str, list[tuple[str, bool]]] = {}
    for entry in entries:
        found = roles[entry.name]
        if found is not None:
            layers.setdefault(found[0], []).append((found[1], entry.norm == 0))
    told = {
        layer: chain_rule([role for role, is_dead in members if is_dead], [role for role, _ in members])
        for layer, members in layers.items()
    }
    by_weight = any(entry.weight_norm for entry in entries)
    sizes = [s for e in entries if (s := e.size) and math.isfinite(s) and (not by_weight or e.weight_norm)]
    median = statistics.median(sizes) if sizes else None
    return tuple(
        _judge(entry, median if not by_weight or entry.weight_norm else None, roles[entry.name], told)
        for entry in entries
    )


def _judge(
    entry: Recorded, median: float | None, role: tuple[str, str] | None, told: dict[str, str]
) -> RecordedVerdict:
    def verdict(kind: VerdictKind, reason: str, relative: float | None = None) -> RecordedVerdict:
        return RecordedVerdict(entry.name, entry.norm, entry.weight_norm, kind, reason.strip(), relative)

    if entry.norm is None:
        return verdict("dead", "No gradient at all: it is frozen, or took no part in the loss.")
    if not math.isfinite(entry.norm):
        word = "NaN" if math.isnan(entry.norm) else "Infinite"
        return verdict("exploding", f"{word}: look for the first tensor of the forward pass that is not finite.")
    is_key_bias = role is not None and role[1] == "k_bias"
    size = entry.size or 0.0
    relative = size / median if median else None
    if is_key_bias and (relative is None or relative < 1 / FAR_IN_A_FILE):
        return verdict(
            "by design", "A key bias changes no weight, so it gets only rounding noise; that is fine.", relative
        )
    if entry.norm == 0:
        chain = told.get(role[0], "") if role is not None else ""
        return verdict("dead", f"Exactly 0. {chain}", 0.0)
    if relative is None:
        return verdict("healthy", "Not zero; there is nothing to compare it with.")
    words = f"{relative:.2g} times the median of the file"
    if relative < 1 / FAR_IN_A_FILE:
        return verdict("vanishing", f"{words}: a learning rate that suits the others hardly moves it.", relative)
    if relative > FAR_IN_A_FILE:
        return verdict("exploding", f"{words}: a learning rate that suits the others throws it far.", relative)
    return verdict("healthy", f"{words}.", relative)
