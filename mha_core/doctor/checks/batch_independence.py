"""Batch independence: no sample may move another, and a sample alone must give what it gives inside a batch.

Axes: B batch, S tokens, H heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import (
    Cause,
    first_named,
    mask_finding,
    mixes_batch_in_training,
    softmax_mistake,
    split_mistake,
)
from mha_core.doctor.probes.influence import (
    NOISE,
    ROUNDING,
    Part,
    Probe,
    hiding,
    key_part,
    movement,
    redrawn,
    replaced,
    selected,
)
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

MODES = (Mode(), Mode(weights=True), Mode(training=True, dropout=0.0))
LENGTHS = (5, 7, 8, 12, 1)
STILL = Mode(dropout=0.0)


def check(subject: Subject) -> CheckResult:
    """Test that samples of a batch do not see each other."""
    length = usable_lengths(subject, LENGTHS)[0]
    sizes = _sizes(subject, length)
    for batch, tokens in sizes:
        for mode in MODES:
            finding = _independent(subject, batch, tokens, mode)
            if finding is not None:
                return finding
    batches = dict.fromkeys((3, min(length, 12)))  # a mask (B, S) with B = S looks like one over pairs
    apart = [_masks_apart(subject, length, batch) for batch in batches]
    for finding in (_alone(subject, length), *apart, _weights_apart(subject, length)):
        if finding is not None:
            return finding
    evidence: dict[str, Any] = {"batch_and_tokens_tested": [list(size) for size in sizes], "modes": len(MODES)}
    accepted = _mismatch(subject, length)
    if accepted:
        evidence["note"] = accepted
    return CheckResult("batch_independence", "pass", "no sample moves another, and each gives the same alone", evidence)


def _sizes(subject: Subject, length: int) -> list[tuple[int, int]]:
    """Choose sizes: B unlike everything, B = S and B = H, where a mixed-up axis fits by luck."""
    heads = subject.num_heads or 1
    wanted = [(3 if length != 3 else 2, length), (min(length, 12), length)]
    if 1 < heads <= 16:
        wanted.append((heads, length))
    return list(dict.fromkeys(wanted))


def _said(mode: Mode) -> str:
    return ("training" if mode.training else "evaluation") + (", weights wanted" if mode.weights else "")


def _independent(subject: Subject, batch: int, length: int, mode: Mode) -> CheckResult | None:
    """Replace one sample and read whether another moves."""
    inputs = subject.inputs(batch, length)
    probe = Probe(subject, mode)
    part: Part = key_part(inputs)
    before, other = probe.output(inputs), redrawn(inputs)
    moved = movement(before, probe.output(replaced(inputs, other, part, 0, slice(None))))
    if part == "memory":
        moved = torch.maximum(moved, movement(before, probe.output(replaced(inputs, other, "query", 0, slice(None)))))
    leaks = moved[1:].amax(-1)
    if not bool((leaks > NOISE).any()):
        return None
    victim = int(leaks.argmax()) + 1
    evidence = {
        "batch": batch,
        "tokens": length,
        "mode": _said(mode),
        "relative_change": float(leaks.max()),
        "smallest_example": {"changed_sample": 0, "moved_sample": victim},
    }
    if mode.training and mixes_batch_in_training(subject):
        reason = f"in training sample 0 of {batch} moves sample {victim}: batch normalisation mixes the batch"
        return CheckResult("batch_independence", "warn", reason, evidence, "BatchNorm in training mode")
    if _attends_along_batch(probe, inputs, before):
        return _along_batch(subject, evidence)
    reason = f"changing sample 0 of {batch} changes sample {victim} ({_said(mode)}, {length} tokens)"
    cause, where = _cause(subject, probe, inputs)
    return CheckResult("batch_independence", "fail", reason, evidence, cause, where)


def _attends_along_batch(probe: Probe, inputs: Inputs, before: Tensor) -> bool:
    """Tell whether a token moves the tokens at its own place in the other samples, and none else."""
    length = inputs.query.shape[1]
    if length < 2:
        return False
    moved = movement(before, probe.output(replaced(inputs, redrawn(inputs), key_part(inputs), 0, 1))) > NOISE
    return bool(moved[:, 1].all()) and not bool(moved[:, [i for i in range(length) if i != 1]].any())


def _along_batch(subject: Subject, evidence: dict[str, object]) -> CheckResult:
    reason = "attention runs along axis 0: tokens of one place in all samples see each other, tokens of a sample do not"
    advice = "the module reads (S, B, E); if that is what you mean, say batch_first=False"
    status = "by_design" if subject.is_library else "fail"
    return CheckResult("batch_independence", status, f"{reason}; {advice}", evidence, advice)  # type: ignore[arg-type]


def _cause(subject: Subject, probe: Probe, inputs: Inputs) -> Cause:
    look, (batch, length) = probe.look(inputs), inputs.query.shape[:2]
    return first_named(softmax_mistake(subject, look, batch, length), split_mistake(subject, look, batch, length))


def _alone(subject: Subject, length: int) -> CheckResult | None:
    """Compare every sample of a batch with the same sample alone."""
    probe, inputs = Probe(subject, STILL), subject.inputs(3, length)
    together = probe.output(inputs)
    for sample in range(3):
        try:
            alone = probe.output(selected(inputs, slice(sample, sample + 1)))
        except ModuleFailure as failure:
            reason = f"a batch of 1 raises {failure.text}, a batch of 3 works"
            return CheckResult("batch_independence", "fail", reason, {"batch": 1}, "", failure.place)
        change = float(movement(together[sample : sample + 1], alone).max())
        if change > ROUNDING:
            reason = f"sample {sample} alone gives another output than in a batch of 3, by {change:.2g} of its size"
            cause, where = _cause(subject, probe, inputs)
            return CheckResult("batch_independence", "fail", reason, {"relative_change": change}, cause, where)
    return None


def _masks_apart(subject: Subject, length: int, batch: int) -> CheckResult | None:
    """Hide keys of one sample, then compare every sample with itself alone under its own mask."""
    if length < 3:
        return None
    inputs = subject.inputs(batch, length)
    keep = torch.ones(batch, length, dtype=torch.bool)
    keep[0, length - 2 :] = keep[1, length - 1 :] = False
    masks, everything = hiding(subject, keep, length), hiding(subject, torch.ones_like(keep), length)
    if masks is None or everything is None or not (subject.key_mask or subject.sample_pair_mask):
        return None
    try:
        probe = Probe(subject, STILL, masks)
        look = probe.look(inputs)
    except ModuleFailure:  # a mask that crashes is a finding of the padding check
        return None
    for sample in range(batch):
        own = slice(sample, sample + 1)
        alone = probe.under({name: mask[own] for name, mask in masks.items()})
        change = movement(look.answer.output[own], alone.output(selected(inputs, own)))[0][keep[sample]]
        if float(change.max()) > ROUNDING:
            evidence = {"relative_change": float(change.max()), "sample": sample, "tokens": length, "batch": batch}
            reason = (
                f"with a mask per sample, sample {sample} of {batch} gives another output than alone under its mask"
            )
            cause, where = mask_finding(look)
            if batch == length:
                cause = cause or "a mask (B, S) is read as one over pairs (S, S) when B = S"
            cause = cause or "masks of samples and heads are in another order than scores: repeat for repeat_interleave"
            return CheckResult("batch_independence", "fail", reason, evidence, cause, where)
    return None


def _weights_apart(subject: Subject, length: int) -> CheckResult | None:
    """Replace one sample and read whether the returned weights of another move."""
    probe, inputs = Probe(subject, Mode(weights=True, dropout=0.0)), subject.inputs(3, length)
    before = probe.answer(inputs).weights
    after = probe.answer(replaced(inputs, redrawn(inputs), key_part(inputs), 0, slice(None))).weights
    if before is None or after is None or before.shape != after.shape or before.shape[0] != 3 or before.dim() < 3:
        return None
    moved = movement(before.flatten(1, -2), after.flatten(1, -2)).amax(-1)
    if float(moved[1:].max()) <= NOISE:
        return None
    victim = int(moved[1:].argmax()) + 1
    reason = f"changing sample 0 of 3 changes the returned weights of sample {victim}, while its output stays"
    cause = "weights are viewed as (batch, heads) although they lie as (heads, batch)"
    evidence = {"batch": 3, "tokens": length, "relative_change": float(moved[victim])}
    return CheckResult("batch_independence", "fail", reason, evidence, cause)


def _mismatch(subject: Subject, length: int) -> str:
    """Give 1 query sample and 4 memory samples: tell what is returned where nothing is raised, "" where all is well.

    A note and no finding: many textbooks' layers view keys with the query's batch size.
    """
    if not subject.can_cross or subject.takes == "tokens":
        return ""
    probe = Probe(subject)
    try:
        inputs = subject.inputs(4, length, length + 2)
        wanted = probe.output(Inputs(inputs.query[:1].expand(4, -1, -1).clone(), inputs.key, inputs.value))
        got = probe.output(Inputs(inputs.query[:1], inputs.key, inputs.value))
    except ModuleFailure:  # it raises, or its output has the batch of the keys
        return ""
    if got.shape == wanted.shape and float(movement(wanted, got).max()) < ROUNDING:
        return ""
    return "1 query sample with 4 key samples is accepted, and the 4 are read as one long sample"
