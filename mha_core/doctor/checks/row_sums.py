"""Does every row of weights sum to 1 over the keys, and are the weights returned the ones that were used?

Both are looked at: what the module returns, and what multiplied the values. Rows without a visible key are left out.
Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.causes import mask_cause, softmax_cause
from mha_core.doctor.probes.uses import Sight, Use, answer_of, difference, look, probe_sizes, sights, uses
from mha_core.doctor.probes.weight_rows import (
    MOST_SINKS,
    SUMS,
    all_one,
    has_extra_key,
    is_same_map,
    mixing,
    other_axis,
    row_error,
    visible_rows,
    weights_without_dropout,
)
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core

_SINKS = re.compile(r"sink|off_by_one|softmax_?(1|one|plus)|quiet|null_(k|v|key|value)|bias_k|zero_attn", re.IGNORECASE)
_OTHER_MAPS = ("sigmoid", "relu", "elu", "gelu", "tanh")


@dataclass(frozen=True)
class _Probe:
    """A sight, with what is needed to name causes."""

    subject: Subject
    sight: Sight
    batch: int
    length: int

    def cause(self, core: Core) -> tuple[str, Place | None]:
        """Ask for the mistake in the softmax."""
        return softmax_cause(
            self.sight.trace, core, batch=self.batch, q_len=self.length, k_len=self.length,
            num_heads=self.subject.num_heads or 1,
        )  # fmt: skip


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("row_sums", status, reason, evidence, cause, where)


def _spread(weights: Tensor) -> str:
    sums = weights.detach().double().sum(-1)
    return f"{float(sums.min()):.3g} to {float(sums.max()):.3g}"


def _sink(subject: Subject) -> bool:
    names = [name for part in subject.module.modules() for name in (type(part).__name__, *vars(part))]
    return any(map(_SINKS.search, [*names, *(name for name, _ in subject.module.named_parameters())]))


def _used_rows(probe: _Probe, core: Core) -> CheckResult | None:
    """Judge the weights that multiplied the values."""
    weights = weights_without_dropout(core)
    evidence: dict[str, Any] = {"use": probe.sight.use.words}
    if all_one(weights):
        cause, place = probe.cause(core)
        return _result(
            "fail", f"every weight is exactly 1 though there are {weights.shape[-1]} keys", evidence,
            cause or "softmax over an axis of size 1", place or core.softmax_place,
        )  # fmt: skip
    if core.double is not None:
        keys = core.scores.shape[-1]
        cause, place = probe.cause(core)
        limit = math.e / (math.e + keys - 1)
        reason = f"softmax is taken of a softmax: over {keys} keys no weight can pass {limit:.2f}"
        return _result("fail", reason, evidence, cause or "softmax of a softmax", place or core.double.place)
    rows = visible_rows(core)
    error = row_error(weights, rows)
    evidence["largest_error_of_a_row_sum"] = error
    if error <= SUMS:
        return None
    if error == math.inf:
        return _not_a_number(probe, core, evidence)
    return _wrong_sums(probe, core, weights, evidence)


def _not_a_number(probe: _Probe, core: Core, evidence: dict[str, Any]) -> CheckResult:
    cause, place = mask_cause(probe.sight.trace, core)
    reason = f"some weights are NaN or infinite in rows with a visible key ({probe.sight.use.words})"
    return _result("fail", reason, evidence, cause, place or core.mask_place or core.softmax_place)


def _wrong_sums(probe: _Probe, core: Core, weights: Tensor, evidence: dict[str, Any]) -> CheckResult:
    """Tell wrong sums that are meant from those that are not."""
    trace, use = probe.sight.trace, probe.sight.use
    words = f"rows of weights sum to {_spread(weights)} instead of 1 ({use.words})"
    axis = other_axis(core.weights)
    if row_error(core.weights, visible_rows(core)) > SUMS:
        cause, place = probe.cause(core)
        over = f"; over the {axis} they sum to 1" if axis else ""
        named = cause or (f"softmax over the {axis}" if axis else "softmax over the wrong axis")
        return _result("fail", words + over, evidence, named, place or core.softmax_place)
    if has_extra_key(core) or (_sink(probe.subject) and not use.masked):
        return _result("by_design", f"{words}: a sink takes the rest", evidence)
    if core.weights.shape[-1] > core.used_weights.shape[-1] + MOST_SINKS:
        cause, place = probe.cause(core)
        named = cause or "softmax over queries and keys together, not over the keys"
        return _result("fail", words, evidence, named, place or core.softmax_place)
    mixed = mixing(trace, core)
    if mixed:
        return _result("by_design", f"{words}: {mixed}", evidence)
    cause, place = mask_cause(trace, core)
    if use.masked or core.fill is not None or cause:
        named = cause or "the mask comes after the softmax, without renormalising"
        return _result("fail", words, evidence, named, place or core.mask_place or core.values_place)
    return _result("fail", words, evidence, "the weights are changed after the softmax", core.values_place)


def _returned_rows(probe: _Probe) -> CheckResult | None:
    """Judge the weights that the module returns."""
    returned, use = probe.sight.answer.weights, probe.sight.use
    if returned is None or returned.shape[-1] < probe.length:
        return None
    evidence: dict[str, Any] = {"use": use.words, "shape": list(returned.shape)}
    found = probe.sight.cores
    if len(found) == 1:
        problem = _is_other_map(probe, returned, found[0], evidence)
        if problem is not None:
            return problem
    if bool((returned.detach() < 0).any()):
        return None  # not weights: a bias, or scores by design
    error = row_error(returned, visible_rows_of(probe, returned))
    evidence["largest_error_of_a_row_sum"] = error
    if error <= SUMS or found:
        return None  # with an attention in the trace, equal to it: judged there
    return _unexplained(probe, returned, evidence)


def visible_rows_of(probe: _Probe, returned: Tensor) -> Tensor | None:
    """Take the rows with a visible key from the trace where the shapes allow."""
    if len(probe.sight.cores) != 1:
        return None
    rows = visible_rows(probe.sight.cores[0])
    return rows if rows.shape == returned.shape[:-1] else None


def _is_other_map(probe: _Probe, returned: Tensor, core: Core, evidence: dict[str, Any]) -> CheckResult | None:
    """Find out which map is returned where it is not the one that was used."""
    trace, batch = probe.sight.trace, probe.batch
    choices = (core.used_weights, weights_without_dropout(core), core.weights)
    same = [is_same_map(returned, choice, batch) for choice in choices]
    if same[0] is None or any(same[:2]):
        return None
    words = f"the weights returned are not those that multiply the values ({probe.sight.use.words})"
    if same[2]:
        if mixing(trace, core) or has_extra_key(core):
            return _result("by_design", f"{words}: they are returned before a mix, a gate or a sink", evidence)
        return _result("fail", f"{words}: they are those of the softmax", evidence,
                       "weights are returned before a later mask", core.values_place)  # fmt: skip
    if is_same_map(returned, core.scores, batch):
        if not (probe.sight.use.mode.weights and probe.subject.convention.weights):
            return None  # nobody asked for weights: scores are what it returns
        reason = "what is returned when weights are asked for are the scores before the softmax"
        return _result("warn", reason, evidence, "scores are returned instead of weights", core.softmax_place)
    if bool((returned.detach() < 0).any()):
        return None
    if row_error(returned) > SUMS and not core.fill:
        reason = f"{words}; their rows sum to {_spread(returned)}"
        return _result("fail", reason, evidence, "another map is returned", core.values_place)
    return _result(
        "fail", words, evidence, "weights are returned before the mask, or computed anew", core.softmax_place
    )


def _mixed_samples(subject: Subject, batch: int, length: int) -> CheckResult | None:
    """Change one sample: the weights returned for another must stay, where the output stays."""
    inputs, use = subject.inputs(batch, length), Use("eval, weights wanted", Mode(weights=True))
    other = subject.inputs(batch, length, seed=9)
    changed = {id(a): torch.cat([a[:1], b[1:]]) for a, b in zip(_streams(inputs), _streams(other), strict=True)}
    before = answer_of(subject, inputs, use)
    after = answer_of(subject, Inputs(*(changed[id(t)] for t in _streams(inputs))), use)
    if before.weights is None or after.weights is None or before.weights.shape[0] != batch:
        return None
    if difference(before.output[:1], after.output[:1]) > SUMS:
        return None  # samples meet in the output too: batch_independence tells of it
    gap = float((before.weights[0] - after.weights[0]).detach().abs().nan_to_num().max())
    if gap <= SUMS:
        return None
    reason = (
        f"the weights returned for sample 0 change by {gap:.2g} when only the other samples change; its output does not"
    )
    cause = "batch and heads are unfolded in the wrong order for the returned weights"
    return _result("fail", reason, {"largest_change": gap, "shape": list(before.weights.shape)}, cause)


def _streams(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return inputs.query, inputs.key, inputs.value


def _unexplained(probe: _Probe, returned: Tensor, evidence: dict[str, Any]) -> CheckResult:
    """Judge returned weights where no softmax of scores was recognised."""
    names = {step.name for step in probe.sight.trace.steps}
    words = f"rows of the returned weights sum to {_spread(returned)} instead of 1 ({probe.sight.use.words})"
    other = [name for name in _OTHER_MAPS if name in names]
    if _sink(probe.subject) and not probe.sight.use.masked:
        return _result("by_design", f"{words}: a sink takes the rest", evidence)
    if other and not names & {"softmax", "exp", "_softmax"}:
        return _result("by_design", f"{words}: attention by {other[0]}, not by softmax", evidence)
    axis = other_axis(returned)
    over = f"; over the {axis} they sum to 1" if axis else ""
    return _result("fail", words + over, evidence, f"softmax over the {axis}" if axis else "weights not normalised")


def _nothing(seen: list[Sight]) -> CheckResult:
    names = {step.name for sight in seen for step in sight.trace.steps}
    other = next((name for name in _OTHER_MAPS if name in names), "")
    if other and "softmax" not in names:
        return _result("not_applicable", f"no softmax and no weights were seen: attention by {other}", {})
    return _result("not_applicable", "no softmax over keys and no returned weights were seen", {})


def _training_sums(subject: Subject, use: Use, batch: int, length: int) -> dict[str, float]:
    """Measure the sums under training dropout; other than 1 is by design there."""
    try:
        core = next(iter(look(subject, subject.inputs(batch, length), use).cores), None)
    except ModuleFailure:
        return {}
    return {} if core is None else {"largest_error_of_a_row_sum_in_training": row_error(core.used_weights)}


def check(subject: Subject) -> CheckResult:
    """Ask for the row sums of the weights used and of the weights returned, with every mask."""
    batch, length = probe_sizes(subject)
    seen = sights(subject, subject.inputs(batch, length), uses(subject, batch, length, training=False))
    found: list[CheckResult] = []
    for sight in seen:
        probe = _Probe(subject, sight, batch, length)
        found += [result for core in sight.cores if (result := _used_rows(probe, core)) is not None]
        returned = _returned_rows(probe)
        found += [returned] if returned is not None else []
    mixed = _mixed_samples(subject, batch, length)
    found += [mixed] if mixed is not None else []
    if found:
        return min(found, key=lambda result: ("fail", "warn", "by_design").index(result.status))
    returns = [s for s in seen if s.answer.weights is not None]
    if not returns and not any(s.cores for s in seen):
        return _nothing(seen)
    errors = [row_error(core.used_weights, visible_rows(core)) for s in seen for core in s.cores]
    evidence: dict[str, Any] = {"ways_tried": len(seen), "largest_error_of_a_row_sum": max(errors, default=0.0)}
    evidence |= _training_sums(subject, Use("train", Mode(training=True)), batch, length)
    same = "; the weights returned are those that are used" if returns and errors else ""
    return _result("pass", f"in {len(seen)} ways of calling, every row of weights sums to 1{same}", evidence)
