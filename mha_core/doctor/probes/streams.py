"""What becomes of sequences that are given apart: an argument without effect, a triangle over another sequence.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from mha_core.doctor.causes.pointing import mask_line, projection_line
from mha_core.doctor.probes.influence import NOISE, SMALLER, Part, Probe, depends, mapped, movement, redrawn, replaced
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, ModuleFailure, Subject

BATCH, QUERIES, KEYS = 2, 5, 7
PARTS: tuple[Part, ...] = ("query", "key", "value")
_ONE_MEMORY = re.compile(
    r"(^|_)(self|cross|encoder_decoder)_att(n|ention)$|share\w*_?kv|kv_?share|tie\w*_kv", re.IGNORECASE
)
_CROSS = re.compile(r"cross|enc(oder)?_?dec|source|memory", re.IGNORECASE)
_ALIGNED = re.compile(r"causal|autoregress|masked|aligned|stream|monotonic", re.IGNORECASE)


def ignored_argument(subject: Subject) -> CheckResult | None:
    """Find an argument of forward(query, key, value) that moves no output; key and value are told apart."""
    if subject.takes not in ("qkv", "heads") or not subject.can_cross:
        return None
    probe, inputs = Probe(subject), _apart(subject)
    try:
        ignored = next((part for part in PARTS if not _moves(probe, inputs, part)), None)
    except ModuleFailure:  # it wants key and value to be one tensor
        return None
    if ignored is None:
        return None
    evidence = {"argument": ignored, "queries": QUERIES, "keys": KEYS}
    reason = f"the {ignored} argument moves no output: another {ignored} gives the same, to the last digit"
    meant = _says(subject, _ONE_MEMORY)
    if subject.is_library or meant:
        words = f", as {meant} says" if meant else ""
        return CheckResult("cross_attention", "by_design", f"{reason}{words}", evidence)
    cause = f"the {ignored} projection is given another argument"
    where = projection_line(probe.look(inputs), ignored)
    return CheckResult("cross_attention", "fail", reason, evidence, cause, where)


def _apart(subject: Subject) -> Inputs:
    inputs = subject.inputs(BATCH, QUERIES, KEYS)
    if inputs.value is not inputs.key:
        return inputs
    return Inputs(inputs.query, inputs.key, redrawn(inputs, seed=23).value)


def _moves(probe: Probe, inputs: Inputs, part: Part) -> bool:
    for scale in SMALLER:
        given = mapped(inputs, lambda tensor, by=scale: tensor * by)  # type: ignore[misc]
        other = replaced(given, redrawn(given), part, slice(None), slice(None))
        if bool((movement(probe.output(given), probe.output(other)) > NOISE).any()):
            return True
    return False


def _says(subject: Subject, pattern: re.Pattern[str]) -> str:
    """Give the name of something that is set in the module and matches."""
    for part in subject.module.modules():
        for name, value in vars(part).items():
            if value is True and pattern.search(name):
                return name
    return ""


def _decodes(subject: Subject) -> bool:
    """Tell whether the triangle comes with a decoder's self-attention, and no switch asks for it by name."""
    names = [name for part in subject.module.modules() for name in vars(part)]
    return any("decoder" in name for name in names) and not any(_ALIGNED.search(name) for name in names)


def triangle(subject: Subject) -> CheckResult | None:
    """Find a causal triangle over keys of another sequence, whose places say nothing about the queries'."""
    needs = subject.takes == "context" and subject.convention.needs_context
    names = f"{type(subject.module).__name__} {' '.join(subject.convention.streams.values())}"
    named = bool(_CROSS.search(names))
    beside = subject.takes == "context" and subject.can_cross and _decodes(subject)
    if not (needs or beside or (named and subject.can_cross)):
        return None
    probe = Probe(subject)
    keys = depends(probe, lambda seed: subject.inputs(BATCH, QUERIES, KEYS, seed=seed), "memory")
    ones = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    corner = next(
        (
            word
            for word, first in (("top-left", 0), ("bottom-right", KEYS - QUERIES))
            if bool((keys == ones.tril(first)).all())
        ),
        "",
    )
    if not corner:
        return None
    evidence: dict[str, Any] = {"queries": QUERIES, "keys": KEYS, "alignment": corner}
    first = 1 if corner == "top-left" else KEYS - QUERIES + 1
    if beside and not needs and corner != "top-left":
        return None
    reason = f"query 0 does not see key {first} and later ones, {corner}, although queries and keys are two sequences"
    if subject.is_library or _ALIGNED.search(type(subject.module).__name__):
        return CheckResult("cross_attention", "by_design", reason, evidence)
    status = "fail" if named and subject.expects_causal is not True else "warn"
    cause = "a causal mask over another sequence"
    where = mask_line(probe.look(subject.inputs(BATCH, QUERIES, KEYS)))
    return CheckResult("cross_attention", status, reason, evidence, cause, where)  # type: ignore[arg-type]
