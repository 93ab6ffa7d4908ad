"""Mask values that scores can beat: how weak is too weak.

A hidden score is replaced by a number, or has one added. Scores of a few thousand, which trained models reach, beat
-1e4; nothing a float16 or a float32 layer computes in practice beats -1e9, or the -1e6 of a well-known textbook.
"""

from __future__ import annotations

from typing import Any

from mha_core.doctor.causes.mistakes import mask_mistake
from mha_core.doctor.probes.influence import Look
from mha_core.doctor.report import CheckId, CheckResult
from mha_core.doctor.traces.cores import Core

TOO_WEAK, WEAK = -1e5, -1e6  # a fill above the first is a failure, above the second a warning
PADDING_TOO_WEAK = -9e3  # BERT was published with -1e4 on padding: a leak there costs less than a look ahead
SURE = -1e8  # a fill above this is told of, though it passes
UNSEEN_FAILS_TO, UNSEEN_WARNS_TO = 1e2, 1e3  # without a fill in the trace: inputs this large that already leak


def judge_fill(
    check: CheckId, look: Look, scale: float, words: str, evidence: dict[str, Any], *, told: float | None = None
) -> CheckResult | None:
    """Judge a leak that needs large inputs by the value at hidden positions; None where it is strong enough.

    Args:
        look: a watched call that leaks.
        scale: of the inputs that leak.
        told: the fill, where the caller knows it.
    """
    core = look.cores[0] if look.cores else None
    fill = told if told is not None else core.fill if core is not None else None
    if (fill is not None and fill <= WEAK) or (fill is None and scale > UNSEEN_WARNS_TO):
        return None
    if fill is None and core is not None and _comes_after(core):
        return None
    cause, where = mask_mistake(look)
    where = where or (core.mask_place if core is not None else None)
    if fill is None:
        status = "fail" if scale <= UNSEEN_FAILS_TO else "warn"
        reason = f"with inputs scaled by {scale:.0e} what should be hidden moves an output ({words})"
        cause = cause or "the mask's value is a finite number that scores can beat"
    else:
        status = "fail" if fill > (PADDING_TOO_WEAK if check == "padding" else TOO_WEAK) else "warn"
        reason = f"hidden scores become {fill:.3g}, which scores beat with inputs scaled by {scale:.0e} ({words})"
        cause = cause or f"the mask's value {fill:.3g} is too weak: use -inf or the dtype's minimum"
        evidence = {**evidence, "fill": fill}
    return CheckResult(check, status, reason, evidence, cause, where)  # type: ignore[arg-type]


def fill_note(look: Look) -> dict[str, Any]:
    """Tell of a fill that is strong enough and no more, as evidence of a pass."""
    fills = [core.fill for core in look.cores if core.fill is not None and core.fill > SURE]
    return {"fill": max(fills), "note": "scores below the fill would let hidden keys win"} if fills else {}


def _comes_after(core: Core) -> bool:
    """Tell whether weights are masked after the softmax: then no value is beaten, and rounding decides large scores."""
    if core.weights.shape != core.used_weights.shape:
        return False
    changed = core.used_weights != core.weights
    return bool((changed & ((core.used_weights == 0) | core.used_weights.isnan())).any())
