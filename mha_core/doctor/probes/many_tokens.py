"""What few tokens do not show: keys taken in blocks, tokens added to fill a block, a bias that favours the far ones.

Axes: B batch, S tokens, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.pointing import attention_line
from mha_core.doctor.probes.influence import NOISE, ROUNDING, Probe, key_part, mapped, movement, redrawn, replaced
from mha_core.doctor.probes.lengths import length_failure
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, Subject
from mha_core.doctor.traces.walk import makers

BATCH, MANY = 2, 41  # a prime above the usual small blocks
FILLED = (5, 7, 8, 9, 11)
JOINS = ("stack", "cat", "concat", "mean", "sum", "add", "div", "__iadd__", "add_")
STILL = Mode(dropout=0.0)
_LOCAL = re.compile(
    r"window|local|sparse|dilat|stride|top_?k|random|shift|bucket|hash|routing|land_?mark", re.IGNORECASE
)


def blocks_apart(subject: Subject, *, causal: bool) -> CheckResult | None:
    """Put many tokens in another order, where few may be put in any: blocks of keys normalised apart notice it."""
    if subject.is_library or subject.position_signs or length_failure(subject, MANY, batch=BATCH) is not None:
        return None
    if any(_LOCAL.search(f"{type(p).__name__} {' '.join(vars(p))}") for p in subject.module.modules()):
        return None
    probe, inputs = Probe(subject, STILL), subject.inputs(BATCH, MANY)
    if inputs.query.shape[1] != MANY or not _sees_all(probe, inputs, causal=causal):
        return None
    order = torch.arange(MANY).roll(17)
    order = torch.cat([torch.arange(MANY - 1).roll(17), torch.tensor([MANY - 1])]) if causal else order
    moved = movement(probe.output(inputs)[:, order], probe.output(mapped(inputs, lambda t: t[:, order])))
    change = float((moved[:, -1] if causal else moved).max())
    if change <= ROUNDING:
        return None
    look = probe.look(inputs)
    parts = [core for core in look.cores if core.weights.shape[-1] < MANY]
    if len(parts) < 2:
        return None
    reason = (
        f"few tokens may change places, {MANY} may not: an output changes by {change:.2g} of its size, though every "
        f"output depends on every token; keys are taken in {len(parts)} parts"
    )
    cause = "every block of keys is normalised by itself: blocks have to be weighted by their sums of exponentials"
    evidence = {"tokens": MANY, "relative_change": change, "parts": len(parts)}
    joins = [s for s in makers(look.trace, look.answer.output) if s.name in JOINS and s.place is not None]
    where: Place | None = joins[0].place if joins else attention_line(look)
    return CheckResult("permutation", "fail", reason, evidence, cause, where)


def _sees_all(probe: Probe, inputs: Inputs, *, causal: bool) -> bool:
    """Tell whether the first and the last token move every output they may."""
    before = probe.output(inputs)
    for token in (0, MANY // 2, MANY - 1):
        moved = movement(before, probe.output(replaced(inputs, redrawn(inputs), key_part(inputs), slice(None), token)))
        if not bool((moved[:, token if causal else 0 :] > NOISE).all()):
            return False
    return True


def filled_up(subject: Subject) -> CheckResult | None:
    """Find keys beyond the tokens that get weight and whose number follows the length: a block filled up with zeros."""
    if subject.is_library or subject.takes != "tokens":
        return None
    extra: dict[int, int] = {}
    place: Place | None = None
    for length in FILLED:
        if subject.only_len is not None or length_failure(subject, length, batch=BATCH) is not None:
            continue
        look = Probe(subject, STILL).look(subject.inputs(BATCH, length))
        if len(look.cores) != 1:
            return None
        weights = look.cores[0].used_weights.detach()
        if weights.shape[-2] not in (length, weights.shape[-1]) or weights.shape[-1] < length:
            return None
        extra[length] = _weighty(weights, length) - length
        if extra[length] > 0 and place is None:
            fills = [step.place for step in makers(look.trace, look.cores[0].k) if step.name == "pad" and step.place]
            place = next(iter(fills), look.cores[0].softmax_place)
    if len(set(extra.values())) < 2 or min(extra.values(), default=0) < 0 or len(extra) < 3:
        return None
    told = ", ".join(f"{count} with {length} tokens" for length, count in extra.items())
    reason = f"keys that are no tokens get weight, and how many depends on the length: {told}"
    cause = "tokens added to fill a block take part as keys: they have to be masked"
    evidence: dict[str, Any] = {"keys_added": extra}
    return CheckResult("constant_values", "fail", reason, evidence, cause, place)


def _weighty(weights: Tensor, length: int) -> int:
    """Count the keys that get weight from a token; added ones stand at the end or at the start."""
    rows = (weights[..., :length, :], weights[..., -length:, :])
    return min(int((part.flatten(0, -2) > 0).any(0).sum()) for part in rows)


def favours_far(subject: Subject, probe: Probe, inputs: Inputs) -> CheckResult | None:
    """Find an ALiBi bias that grows with the distance in every head: near tokens have to be favoured."""
    if "alibi" not in subject.position_signs or subject.is_library:
        return None
    look, length = probe.look(inputs), inputs.query.shape[1]
    if len(look.cores) != 1 or look.cores[0].bias is None or look.cores[0].bias.shape[-1] != length:
        return None
    bias = look.cores[0].bias.detach().double()
    last = bias.reshape(-1, length) if bias.shape[-2:-1] in ((), (1,)) else bias[..., -1, :].reshape(-1, length)
    steps = last.diff(dim=-1)  # from far to near, seen from the last token
    linear = (steps - steps[:, :1]).abs().amax(-1) <= 1e-3 * steps.abs().amax(-1)
    if not bool(linear.all()) or not bool((steps < 0).all()):
        return None
    reason = "the bias of the distance grows with it in every head: far tokens are favoured over near ones"
    cause = "the sign of ALiBi is turned round: slopes times minus the distance"
    made = makers(look.trace, look.cores[0].bias)
    line = next((step.place for step in made if step.name in ("mul", "__mul__") and step.place is not None), None)
    where = line or look.cores[0].scores_place
    evidence = {"tokens": length, "bias_per_step": [float(s) for s in steps[:, 0]]}
    return CheckResult("permutation", "fail", reason, evidence, cause, where)
