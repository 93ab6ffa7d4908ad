"""Constant values: an average of equal values is that value, whatever the weights.

With one value at every key every output row has to be the same, under a causal mask and with padding too. A softmax
over a wrong axis, or a mask after the softmax, breaks it. Where only tokens can be given, and equal tokens would hide
the mistake, the weights' row sums of a watched call answer the same question.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import first_named, mask_mistake, softmax_mistake, split_mistake
from mha_core.doctor.causes.pointing import attention_line
from mha_core.doctor.probes.equal_values import turned_values, without_softmax
from mha_core.doctor.probes.head_rows import scrambled
from mha_core.doctor.probes.influence import ROUNDING, Probe, hiding
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.probes.many_tokens import filled_up
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core

BATCH, LENGTHS = 2, (7, 8, 12, 5)
UNEVEN = 1e-3  # spread of row sums that is no rounding
MODES = {
    "evaluation": Mode(dropout=0.0),
    "evaluation, weights wanted": Mode(weights=True, dropout=0.0),
    "training without dropout": Mode(training=True, dropout=0.0),
}


@dataclass(frozen=True)
class Use:
    """One way to ask: how, in which mode, under which masks, and which query rows see any key. rows: (B, Sq)."""

    words: str
    mode: Mode
    masks: dict[str, Any]
    rows: Tensor


def check(subject: Subject) -> CheckResult:
    """Test that equal values give equal outputs."""
    length = usable_lengths(subject, LENGTHS, batch=BATCH)[0]
    filled = filled_up(subject)
    if filled is not None:
        return filled
    notes: list[CheckResult] = []
    asked = 0
    for use in _uses(subject, length):
        try:
            finding = _judge(subject, use, length, weights_only=bool(notes))
        except ModuleFailure:
            if not use.masks:
                raise
            continue  # a mask that crashes is a finding of the padding check
        asked += 1
        if finding is not None and finding.status in ("fail", "warn"):
            return finding
        if finding is not None:
            notes.append(finding)
    if notes:
        return notes[0]
    raw = without_softmax(subject, Probe(subject, MODES["evaluation"]), subject.inputs(BATCH, length))
    if raw is not None:
        return raw
    reason = f"one value at every key gives one output for all {length} queries, in {asked} uses"
    return CheckResult("constant_values", "pass", reason, {"uses": asked, "tokens": length})


def _uses(subject: Subject, length: int) -> list[Use]:
    everywhere = torch.ones(BATCH, length, dtype=torch.bool)
    padded = everywhere.clone()
    padded[0, -2:] = padded[1, -1:] = False
    kinds: list[tuple[str, dict[str, Any] | None, Tensor]] = [("", {}, everywhere)]
    kinds.append((", with padding", hiding(subject, padded, length), padded))
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    given = subject.pair_mask and subject.accepts(keep_pairs=causal)
    kinds.append((", with a causal mask", {"keep_pairs": causal} if given else None, everywhere))
    return [
        Use(words + name, mode, masks, rows)
        for words, mode in MODES.items()
        for name, masks, rows in kinds
        if masks is not None
    ]


def _judge(subject: Subject, use: Use, length: int, *, weights_only: bool) -> CheckResult | None:
    """Ask once. weights_only: what outputs do is known by design already, so only row sums can still be wrong."""
    probe = Probe(subject, use.mode, use.masks)
    totals = _totals(probe, subject.inputs(BATCH, length), use.rows)
    if totals is not None and totals.extra_columns:
        reason = "the weights leave a share to a sink or to an added key, so equal values give other outputs by design"
        return CheckResult("constant_values", "by_design", reason, {"keys_added": totals.extra_columns})
    if totals is not None and totals.spread > UNEVEN:
        if totals.remixed:
            span = f"{totals.smallest:.3g} to {totals.largest:.3g}"
            reason = (
                f"weights sum to one after the softmax and to {span} at the values: heads are mixed or gated between"
            )
            return CheckResult("constant_values", "by_design", reason, {"mode": use.words})
        return _uneven(subject, probe, use, totals, length)
    if weights_only:
        return None
    spread = _spread(probe.output(_constant(subject, length, alike=False)), use.rows)
    if spread <= ROUNDING:
        return None
    if subject.takes in ("qkv", "heads"):  # the query may reach the output by a way of its own, as a residual does
        spread = _spread(probe.output(_constant(subject, length, alike=True)), use.rows)
        if spread <= ROUNDING:
            if totals is not None:
                return None
            reason = "outputs follow the query although values are equal: no softmax was found to blame"
            return CheckResult("constant_values", "by_design", reason, {"relative_difference": spread})
    return _unequal(subject, probe, use, spread, length)


@dataclass(frozen=True)
class Totals:
    """Row sums of the weights that met the values: smallest, largest, and how many columns are no keys.

    remixed: the softmax is sound, and what comes after it hides nothing: heads are mixed, or weights are gated.
    """

    smallest: float
    largest: float
    extra_columns: int
    remixed: bool = False

    @property
    def spread(self) -> float:
        return self.largest - self.smallest


def _totals(probe: Probe, inputs: Inputs, rows: Tensor) -> Totals | None:
    """Read the row sums of the only attention there is, over rows that see a key; None where they cannot be read."""
    look = probe.look(inputs)
    if len(look.cores) != 1:
        return None
    core, (q_len, k_len) = look.cores[0], (inputs.query.shape[1], inputs.key.shape[1])
    used = core.used_weights.detach()
    if used.dim() < 2 or used.shape[-2] != q_len or used.shape[-1] not in range(k_len, k_len + 3):
        return None
    extra = max(used.shape[-1], core.weights.shape[-1]) - k_len
    extra = extra if extra < 3 else 0  # more than that is a softmax over several axes at once
    sums = used.double().sum(-1).reshape(-1, q_len)[:, rows.all(0)]
    sums = sums[sums.isfinite()]
    return Totals(float(sums.min()), float(sums.max()), extra, _is_remixed(core)) if sums.numel() else None


def _is_remixed(core: Core) -> bool:
    weights, used = core.weights.detach(), core.used_weights.detach()
    if core.dim != -1 or weights.shape != used.shape or bool(((used == 0) & (weights != 0)).any()):
        return False
    return bool(torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-4)) and not torch.equal(weights, used)


def _constant(subject: Subject, length: int, *, alike: bool) -> Inputs:
    """Draw inputs with one value per sample. alike: one query and one key too."""

    def first(tensor: Tensor) -> Tensor:
        return tensor[:, :1].expand_as(tensor).contiguous()

    inputs = subject.inputs(BATCH, length)
    if subject.takes in ("qkv", "heads") and (subject.can_cross or not alike):
        drawn = subject.inputs(BATCH, length, length, seed=9)
        query, key = (first(drawn.query), first(drawn.key)) if alike else (drawn.query, drawn.key)
        return Inputs(query, key, first(subject.inputs(BATCH, length, length, seed=10).value))
    if subject.takes == "context" and subject.can_cross:
        drawn = subject.inputs(BATCH, length, length, seed=9)
        key = first(drawn.key)
        return Inputs(first(drawn.query), key, key)
    query = first(inputs.query)
    if inputs.key is inputs.query:
        return Inputs(query, query, query)
    key = first(inputs.key)
    return Inputs(query, key, key if inputs.value is inputs.key else first(inputs.value))


def _spread(output: Tensor, rows: Tensor) -> float:
    """Give the largest difference between rows of a sample, relative to the largest output."""
    largest, size = 0.0, max(float(output.nan_to_num().abs().max()), 1e-30)
    for sample in range(output.shape[0]):
        kept = output[sample, rows[sample]]
        kept = kept[kept.isfinite().all(-1)]
        if kept.shape[0] > 1:
            largest = max(largest, float((kept - kept[:1]).abs().max()) / size)
    return largest


def _uneven(subject: Subject, probe: Probe, use: Use, totals: Totals, length: int) -> CheckResult:
    look = probe.look(subject.inputs(BATCH, length))
    cause, where = first_named(softmax_mistake(subject, look, BATCH, length), mask_mistake(look))
    if not cause and use.masks:
        cause = "the mask comes after the softmax and rows are not normalised again"
    reason = (
        f"weights of a row sum to {totals.smallest:.3g} to {totals.largest:.3g}, so equal values give unequal outputs"
    )
    evidence = {
        "mode": use.words,
        "smallest_row_sum": totals.smallest,
        "largest_row_sum": totals.largest,
        "tokens": length,
    }
    where = where or look.cores[0].softmax_place
    return CheckResult("constant_values", "fail", f"{reason} ({use.words})", evidence, cause, where)


def _unequal(subject: Subject, probe: Probe, use: Use, spread: float, length: int) -> CheckResult:
    """Judge unequal outputs of equal tokens: positions by design, or rows that hold wrong channels."""
    evidence = {"mode": use.words, "relative_difference": spread, "tokens": length}
    plain, inputs = Probe(subject, MODES["evaluation"]), subject.inputs(BATCH, length)
    known = without_softmax(subject, plain, inputs, spread=spread) or turned_values(subject, plain, inputs)
    if known is not None:
        return known
    readable, mixing = scrambled(plain, inputs)
    if mixing is None and {"learned positions", "recurrent"} & set(subject.position_signs):
        reason = "positions are added inside the module, so no two tokens can be made equal"
        return CheckResult("constant_values", "not_applicable", reason, evidence)
    if mixing is None and subject.position_signs:
        reason = f"equal tokens give unequal outputs, as {' and '.join(subject.position_signs)} mean it to"
        return CheckResult("constant_values", "by_design", reason, evidence)
    if mixing is None and readable:
        reason = "equal tokens give unequal outputs, with weights that sum to one: places matter inside"
        return CheckResult("constant_values", "by_design", reason, evidence)
    look = probe.look(inputs)
    cause, where = split_mistake(subject, look, BATCH, length)
    where = where or attention_line(look)
    reason = f"one value at every key gives outputs that differ by {spread:.2g} of their size ({use.words})"
    return CheckResult("constant_values", "fail", reason, evidence, cause, where)
