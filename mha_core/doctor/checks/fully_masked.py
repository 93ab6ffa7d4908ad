"""Fully masked rows: what a query gives that may see no key, and what that does to everything else.

Three conventions are in use: NaN (fill -inf), a uniform average of the hidden values (finite fill) and zero (a safe
softmax). NaN must not reach other rows' outputs; whether it reaches the parameters' gradients when those rows are
left out of the loss is told, since slicing NaN away does not keep it out of the backward pass.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.calls.mask_forms import MaskUse
from mha_core.doctor.causes.mistakes import mask_finding
from mha_core.doctor.causes.pointing import attention_line, mask_line
from mha_core.doctor.probes.influence import NOISE, ROUNDING, Probe, hiding, key_part, movement, redrawn, replaced
from mha_core.doctor.probes.lengths import is_deliberate, usable_lengths
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

BATCH, LENGTHS = 3, (5, 7, 8, 12)
MODES = {
    "evaluation": Mode(dropout=0.0),
    "evaluation, weights wanted": Mode(weights=True, dropout=0.0),
    "training without dropout": Mode(training=True, dropout=0.0),
}


@dataclass(frozen=True)
class Case:
    """Rows that may see nothing. empty: (B, Sq) bool."""

    words: str
    masks: dict[str, Any]
    without: dict[str, Any]
    empty: Tensor


@dataclass(frozen=True)
class Seen:
    """What one case showed in one mode."""

    convention: str
    words: str
    gradients: str
    where: Place | None = None


def check(subject: Subject) -> CheckResult:
    """Test rows that may see no key, forward and backward."""
    subject = _with_finite_masks(subject)
    length = usable_lengths(subject, LENGTHS, batch=BATCH)[0]
    cases = _cases(subject, length)
    if not cases:
        reason = "no argument of forward takes a mask that could hide every key"
        return CheckResult("fully_masked", "not_applicable", reason)
    seen: list[Seen] = []
    for case in cases:
        for words, mode in MODES.items():
            told = f"{case.words}, {words}"
            try:
                found = _look(subject, case, mode, told, length)
            except ModuleFailure as failure:
                found = _raised(failure, told)
            if isinstance(found, CheckResult):
                return found
            seen.append(found)
    return _summary(subject, seen)


def _with_finite_masks(subject: Subject) -> Subject:
    """Write additive masks with the smallest float: the -inf in them would be ours, and not the module's."""

    def finite(uses: tuple[MaskUse, ...]) -> tuple[MaskUse, ...]:
        return tuple(replace(use, kind="add_min") if use.kind == "add" else use for use in uses)

    convention = replace(
        subject.convention, masks=finite(subject.convention.masks), self_masks=finite(subject.convention.self_masks)
    )
    return replace(subject, convention=convention)


def _cases(subject: Subject, length: int) -> list[Case]:
    """Hide every key of one sample, and every key of one row."""
    cases = []
    keep = torch.ones(BATCH, length, dtype=torch.bool)
    without = hiding(subject, keep, length)
    keep = keep.clone()
    keep[0] = False
    masks = hiding(subject, keep, length)
    empty = torch.zeros(BATCH, length, dtype=torch.bool)
    if masks is not None and without is not None:
        cases.append(Case("all keys of sample 0 hidden", masks, without, (~keep[:, :1]).expand(-1, length)))
    pairs = torch.ones(length, length, dtype=torch.bool)
    hidden = pairs.clone()
    hidden[1] = False
    if subject.pair_mask and subject.accepts(keep_pairs=hidden):
        empty[:, 1] = True
        cases.append(Case("all keys of row 1 hidden", {"keep_pairs": hidden}, {"keep_pairs": pairs}, empty))
    return cases


def _raised(failure: ModuleFailure, words: str) -> CheckResult:
    evidence = {"case": words, "error": failure.text}
    if is_deliberate(failure):
        reason = f"the module refuses rows without any key ({words}): {failure.text}"
        return CheckResult("fully_masked", "pass", reason, evidence)
    return CheckResult("fully_masked", "fail", f"{words} raises {failure.text}", evidence, "", failure.place)


def _look(subject: Subject, case: Case, mode: Mode, words: str, length: int) -> Seen | CheckResult:
    inputs = subject.inputs(BATCH, length)
    probe = Probe(subject, mode, case.masks)
    output, usual = probe.output(inputs), probe.under(case.without).output(inputs)
    others = ~case.empty
    spread = output.isnan().flatten(2).any(-1) & others & ~usual.isnan().flatten(2).any(-1)
    if bool(spread.any()):
        sample, row = (int(i) for i in spread.nonzero()[0])
        reason = f"NaN of rows without a key reaches output {row} of sample {sample}"
        if len(probe.look(inputs).cores) > 1 and bool(case.empty[sample].any()):  # within the sample, by a second layer
            status = "by_design" if subject.is_library else "warn"
            reason += ": the next attention reads it as a value"
            return CheckResult("fully_masked", status, f"{reason} ({words})", {"case": words})  # type: ignore[arg-type]
        return _result(probe, inputs, words, reason)
    alone = ~case.empty.any(1, keepdim=True) if _passes_on(subject, probe, inputs) else others
    moved = torch.where(alone, movement(usual, output), 0.0)
    if float(moved.max()) > ROUNDING:
        sample, row = divmod(int(moved.argmax()), length)
        text = f"output {row} of sample {sample} changes by {float(moved.max()):.2g} when other rows see no key"
        return _result(probe, inputs, words, text)
    convention, gradients = _convention(probe, inputs, output, case.empty), _gradients(subject, probe, inputs, others)
    line = mask_line if convention == "NaN" else attention_line
    where = line(probe.look(inputs)) if "NaN" in (convention, gradients) else None
    return Seen(convention, words, gradients, where)


def _passes_on(subject: Subject, probe: Probe, inputs: Inputs) -> bool:
    """Tell whether a token two steps away arrives, where each may see itself and the one before: several layers."""
    length = inputs.query.shape[1]
    chain = torch.eye(length, dtype=torch.bool) | torch.ones(length, length, dtype=torch.bool).tril(-1).triu(-1)
    if length < 3 or not (subject.pair_mask and subject.accepts(keep_pairs=chain)):
        return False
    chained = probe.under({"keep_pairs": chain})
    try:
        before = chained.output(inputs)
        after = chained.output(replaced(inputs, redrawn(inputs), key_part(inputs), 0, 0))
    except ModuleFailure:
        return False
    return bool(movement(before, after)[0, 2] > NOISE)


def _result(probe: Probe, inputs: Inputs, words: str, reason: str) -> CheckResult:
    cause, where = mask_finding(probe.look(inputs))
    return CheckResult("fully_masked", "fail", f"{reason} ({words})", {"case": words}, cause, where)


def _convention(probe: Probe, inputs: Inputs, output: Tensor, empty: Tensor) -> str:
    """Name what an empty row gives: NaN, zero, or an average of what should be hidden."""
    if bool(output[empty].isnan().any()):
        return "NaN"
    changed = movement(output, probe.output(replaced(inputs, redrawn(inputs), key_part(inputs), 0, slice(2, None))))
    blind = not bool((changed[0, :2][empty[0, :2]] > NOISE).any())
    if blind:
        return "zero"
    look = probe.look(inputs)
    if len(look.cores) == 1 and look.cores[0].used_weights.shape[-2:] == (empty.shape[1], inputs.key.shape[1]):
        weights = look.cores[0].used_weights.detach().reshape(-1, *look.cores[0].used_weights.shape[-2:])
        row = weights[0, 1]
        if bool((row - row.mean()).abs().max() > 1e-4):
            return "the mask is beaten: weights are as without a mask"
    return "uniform"


def _gradients(subject: Subject, probe: Probe, inputs: Inputs, others: Tensor) -> str:
    """Leave the empty rows out of the loss and tell what reaches the parameters: "finite", "NaN" or "none"."""
    parameters = [parameter for parameter in probe.module.parameters() if parameter.requires_grad]
    if not parameters:
        return "none"
    with torch.enable_grad():
        output = subject.call(inputs, mode=probe.as_copied, module=probe.module, **probe.masks).output
        if not output.requires_grad:
            return "none"
        gradients = torch.autograd.grad(output[others].square().mean(), parameters, allow_unused=True)
    bad = any(gradient is not None and not bool(gradient.isfinite().all()) for gradient in gradients)
    return "NaN" if bad else "finite"


def _summary(subject: Subject, seen: list[Seen]) -> CheckResult:
    conventions = list(dict.fromkeys(one.convention for one in seen))
    poisoned = [one.words for one in seen if one.gradients == "NaN"]
    evidence: dict[str, Any] = {
        "convention": {one.words: one.convention for one in seen},
        "gradients_without_these_rows": {one.words: one.gradients for one in seen},
    }
    spoken = " or ".join(conventions)
    usual = "by_design" if subject.is_library else "warn"
    where = next((one.where for one in seen if one.where is not None), None)
    if "NaN" in conventions:
        reason = f"a row without any key gives {spoken}; other rows stay as they are"
        told = "become NaN all the same" if poisoned else "stay finite"
        reason += f", and gradients of the parameters {told} when such rows are left out of the loss"
        cause = "softmax of a row of -inf"
        return CheckResult("fully_masked", usual, reason, evidence, cause, where)  # type: ignore[arg-type]
    if poisoned and "zero" in conventions:
        reason = f"a row without any key gives {spoken}, but gradients of the parameters become NaN ({poisoned[0]})"
        cause = "NaN is replaced after the softmax: the backward pass meets it all the same"
        return CheckResult("fully_masked", usual, reason, evidence, cause, where)  # type: ignore[arg-type]
    reason = f"a row without any key gives {spoken}; other rows and all gradients stay as they should"
    return CheckResult("fully_masked", "pass", reason, evidence)
