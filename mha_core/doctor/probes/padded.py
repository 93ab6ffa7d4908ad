"""Padded batches to test a mask over keys with: which tokens are hidden, how that is said, which rows have to be right.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.probes.influence import NOISE, Probe, hiding, influence, key_part, mapped, redrawn, replaced
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

BATCH, LENGTHS = 3, (7, 8, 12, 5)


@dataclass(frozen=True)
class Case:
    """One padded batch. keep: (B, Sk), True = may attend. rows: (B, Sq), outputs that have to be right."""

    words: str
    inputs: Inputs
    keep: Tensor
    rows: Tensor
    masks: dict[str, Any]
    left: bool


def padded_cases(subject: Subject) -> list[Case]:
    """Choose padded batches: at the end and at the start, self-attention and, where possible, crossing."""
    length = usable_lengths(subject, LENGTHS, batch=BATCH)[0]
    if length < 3:
        return []
    alone = _queries_are_keys(subject, length)
    made = [_case(subject, subject.inputs(BATCH, length), left) for left in (False, True) if not alone]
    if subject.can_cross and subject.takes != "tokens":
        made.append(_case(subject, subject.inputs(BATCH, 5, 7), False))
    return [case for case in made if case is not None]


def _queries_are_keys(subject: Subject, length: int) -> bool:
    """Tell whether queries are attended to beside the context: a hidden token that is a query too stays visible."""
    if subject.takes != "context" or not subject.can_cross or subject.convention.self_masks:
        return False
    moved = influence(Probe(subject), subject.inputs(BATCH, length, length + 2), "query", tokens=(0,))[0, 0]
    return bool((moved[1:] > NOISE).any())


def _case(subject: Subject, inputs: Inputs, left: bool) -> Case | None:
    q_len, k_len = inputs.query.shape[1], inputs.key.shape[1]
    place = torch.arange(k_len)
    hidden = torch.tensor([k_len // 3, 1, 0])  # how many tokens of each sample are padding
    keep = place >= hidden[:, None] if left else place < k_len - hidden[:, None]
    masks = hiding(subject, keep, q_len)
    if masks is None:  # one mask for all samples
        keep = keep[:1].expand(BATCH, -1)
        masks = hiding(subject, keep, q_len)
    if masks is None:
        return None
    own = key_part(inputs) == "tokens" or (q_len == k_len and not subject.can_cross)
    rows = keep if own else torch.ones(BATCH, q_len, dtype=torch.bool)
    words = f"padding at the {'start' if left else 'end'}" + ("" if own else f", {q_len} queries and {k_len} keys")
    return Case(words, inputs, keep, rows, masks, left)


def nothing_hidden(subject: Subject, case: Case) -> dict[str, Any]:
    return hiding(subject, torch.ones_like(case.keep), case.inputs.query.shape[1]) or {}


def with_other_tokens(inputs: Inputs, where: Tensor, scale: float = 1.0) -> Inputs:
    """Replace the memory's tokens at `where` (B, Sk) by others, times `scale`."""
    other = mapped(redrawn(inputs), lambda tensor: tensor * scale)
    sample, token = where.nonzero(as_tuple=True)
    return replaced(inputs, other, key_part(inputs), sample, token)


def can_compare(subject: Subject, case: Case) -> bool:
    """Tell whether a sample without its padding has to give the same: places may not count from the other end.

    With queries beside a longer memory, taking keys away also moves the places of queries relative to the others, and
    so the triangle of a causal module.
    """
    absolute = {"learned positions", "conv", "recurrent"} & set(subject.position_signs)
    moves = case.inputs.query.shape[1] != case.inputs.key.shape[1] and bool(
        subject.position_signs or subject.expects_causal
    )
    return not (case.left and absolute) and not moves


def nan_spreads(subject: Subject, case: Case) -> bool:
    """Tell, as a note only, whether NaN in hidden tokens reaches visible rows: 0 times NaN is NaN."""
    try:
        probe = Probe(subject, Mode(), case.masks)
        output = probe.output(with_other_tokens(case.inputs, ~case.keep, float("nan")))
    except ModuleFailure:
        return True
    return bool(output.isnan().flatten(2).any(-1)[case.rows].any())
