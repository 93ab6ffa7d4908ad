"""Permutation: without positions inside, tokens in another order give the same outputs in that order.

Where the module is causal only the last output sees everything, so the tokens before it are put in another order and
it has to stay. Positions inside are by design; then the look inside must still find that every row of a head belongs
to one token, since positions do not mix tokens and a wrong reshape does.

Axes: B batch, S tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import split_mistake
from mha_core.doctor.causes.pointing import Break, attention_line, order_break
from mha_core.doctor.probes.head_rows import scrambled
from mha_core.doctor.probes.influence import (
    NOISE,
    ROUNDING,
    Probe,
    key_part,
    mapped,
    movement,
    redrawn,
    replaced,
    says_local,
)
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.probes.many_tokens import blocks_apart, favours_far
from mha_core.doctor.probes.rotary_sense import rotation_without_order, unequal_distances
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Mode, Subject

BATCH, LENGTHS = 2, (7, 8, 12, 5)
STILL = Mode(dropout=0.0)


def check(subject: Subject) -> CheckResult:
    """Test that the order of tokens does not matter, or matters by design."""
    length = usable_lengths(subject, LENGTHS)[0]
    if length < 3:
        reason = f"the module takes {length} tokens: there is no order to change"
        return CheckResult("permutation", "not_applicable", reason)
    probe, inputs = Probe(subject, STILL), subject.inputs(BATCH, length)
    causal = _is_causal(probe, inputs)
    change, row = _change(probe, inputs, causal)
    if change > ROUNDING:
        return _ordered(subject, probe, inputs, change, row)
    astray = rotation_without_order(subject, probe, inputs)
    if astray is not None:
        return astray
    apart = blocks_apart(subject, causal=causal)
    if apart is not None:
        return apart
    change = 0.0 if causal else _masked_change(subject, inputs)
    if change > ROUNDING:
        reason = f"with tokens and their mask in another order an output differs by {change:.2g} of its size"
        return CheckResult("permutation", "fail", reason, {"relative_change": change}, "the mask lies on wrong axes")
    evidence = {"tokens": length, "relative_change": change}
    if causal:
        reason = f"the last of {length} outputs does not notice the order of the tokens before it"
    else:
        reason = f"{length} tokens in another order give the same outputs in that order"
    return CheckResult("permutation", "pass", reason, evidence)


def _order(length: int) -> Tensor:
    """A fixed order without fixed points, which is not its own inverse."""
    return torch.arange(length).roll(2)


def _is_causal(probe: Probe, inputs: Inputs) -> bool:
    """Tell whether the last token stays hidden from the first output."""
    later = replaced(inputs, redrawn(inputs), key_part(inputs), slice(None), -1)
    moved = movement(probe.output(inputs), probe.output(later))
    return not bool((moved[:, 0] > NOISE).any())


def _change(probe: Probe, inputs: Inputs, causal: bool) -> tuple[float, int]:
    """Give how much outputs change when tokens change places, and which row most."""
    length = inputs.query.shape[1]
    before = probe.output(inputs)
    if causal:
        order = torch.cat([_order(length - 1), torch.tensor([length - 1])])
        moved = movement(before, probe.output(_reordered(inputs, order)))[:, -1]
        return float(moved.max()), length - 1
    order = _order(length)
    moved = movement(before[:, order], probe.output(_reordered(inputs, order)))
    return float(moved.max()), int(order[int(moved.amax(0).argmax())])


def _reordered(inputs: Inputs, order: Tensor) -> Inputs:
    return mapped(inputs, lambda tensor: tensor[:, order])


def _masked_change(subject: Subject, inputs: Inputs) -> float:
    """Permute tokens together with a mask over pairs, where one can be given."""
    length = inputs.query.shape[1]
    generator = torch.Generator().manual_seed(5)
    keep = (torch.rand(length, length, generator=generator) > 0.4) | torch.eye(length, dtype=torch.bool)
    if not (subject.pair_mask and subject.accepts(keep_pairs=keep)):
        return 0.0
    order = _order(length)
    before = _masked(subject, keep).output(inputs)
    after = _masked(subject, keep[order][:, order]).output(_reordered(inputs, order))
    return float(movement(before[:, order], after).max())


def _masked(subject: Subject, keep: Tensor) -> Probe:
    masks: dict[str, Any] = {"keep_pairs": keep}
    return Probe(subject, STILL, masks)


def _ordered(subject: Subject, probe: Probe, inputs: Inputs, change: float, row: int) -> CheckResult:
    """Judge a module that notices the order: positions by design, or rows that hold wrong tokens."""
    length = inputs.query.shape[1]
    evidence: dict[str, Any] = {"tokens": length, "relative_change": change, "output": row}
    readable, mixing = scrambled(probe, inputs)
    if mixing is not None:
        cause, where = split_mistake(subject, probe.look(inputs), BATCH, length)
        reason = f"tokens in another order give other outputs: row {mixing.row} of a head's {mixing.of} holds token "
        cause = cause or "heads are split or joined without a transpose"
        broken = None if where else _break(probe, inputs)
        where = where or (attention_line(probe.look(inputs)) if broken is None else broken.step.place)
        return CheckResult("permutation", "fail", f"{reason}{mixing.token}", evidence, cause, where)
    skewed = unequal_distances(subject, probe, inputs) or favours_far(subject, probe, inputs)
    if skewed is not None:
        return skewed
    if subject.position_signs:
        reason = f"the order of tokens matters, as {' and '.join(subject.position_signs)} mean it to"
        return CheckResult("permutation", "by_design", reason, {**evidence, "signs": list(subject.position_signs)})
    if says_local(subject):
        reason = "the order of tokens matters: each sees a part of them, chosen by place"
        return CheckResult("permutation", "by_design", reason, evidence)
    broken = _break(probe, inputs)
    if broken is not None and broken.rearranges:
        name, where = broken.step.name, broken.step.place
        reason = f"output {row} changes by {change:.2g} of its size when tokens change places: {name} mixes them up"
        cause = f"{name} after heads and tokens are in another order: a transpose or another axis is missing"
        return CheckResult("permutation", "fail", reason, evidence, cause, where)
    if not readable and broken is not None and broken.positions:
        reason = f"the order of tokens matters, by a table of places that {broken.step.name} takes in"
        return CheckResult("permutation", "by_design", reason, evidence)
    if readable:
        reason = "the order of tokens matters, yet no row of a head holds another token: positions are inside"
        return CheckResult("permutation", "by_design", reason, evidence)
    reason = f"output {row} changes by {change:.2g} of its size when tokens change places, and nothing says that "
    where = attention_line(probe.look(inputs)) if broken is None else broken.step.place
    return CheckResult("permutation", "fail", reason + "places matter", evidence, "", where)


def _break(probe: Probe, inputs: Inputs) -> Break | None:
    """Find the step that breaks the order of tokens."""
    order = _order(inputs.query.shape[1])
    return order_break(probe.look(inputs), probe.look(_reordered(inputs, order)), order)
