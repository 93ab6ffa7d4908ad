"""What training must keep: the mean of the weights under dropout, and the mode the module was put into.

Axes: B batch, S tokens, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import inspect
import re

from torch import Tensor

from mha_core.doctor.probes.uses import Sight, Use, answer_of, look
from mha_core.doctor.probes.weight_rows import path_of
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core

KEPT = 1e-4  # relative change of a weight that was kept and not scaled
FEW, MANY = 0.02, 0.98  # shares of dropped weights that tell of dropout


def mode_kept(subject: Subject, inputs: Inputs) -> CheckResult | None:
    """Find a forward pass that switches the module, or a part of it, from training to eval or back."""
    for mode in (Mode(True), Mode(True, True), Mode(), Mode(weights=True)):
        module = subject.fresh(training=mode.training)
        before = {name: part.training for name, part in module.named_modules()}
        try:
            answer_of(subject, inputs, Use("", mode), module)
        except ModuleFailure:  # a mode that raises is told of elsewhere
            continue
        changed = [
            name for name, part in module.named_modules() if part.training is not before.get(name, part.training)
        ]
        if changed:
            words = ("in training" if mode.training else "in eval") + (", weights wanted" if mode.weights else "")
            to = "eval" if mode.training else "training"
            reason = f"a call {words} switches the module to {to}, and it stays there: dropout is lost or left on"
            where = _switching(subject, to)
            cause = "forward calls eval() or train() on the module and does not go back"
            return CheckResult("mode_round_trip", "fail", reason, {"switched": changed}, cause, where)
    return None


def _switching(subject: Subject, to: str) -> Place | None:
    """Find the line that switches the mode."""
    call = r"\.eval\(\)|\.train\(False\)" if to == "eval" else r"\.train\((True)?\)"
    for part in subject.module.modules():
        try:
            lines, start = inspect.getsourcelines(type(part))
            file = inspect.getsourcefile(type(part)) or ""
        except (OSError, TypeError):
            continue
        for offset, line in enumerate(lines if file in subject.files else []):
            if re.search(call, line):
                return Place(file.rsplit("/", 1)[-1], start + offset, line.strip())
    return None


def unscaled_dropout(subject: Subject, inputs: Inputs) -> CheckResult | None:
    """Find weights dropped at random in training while those kept are exactly what they were, and eval keeps all."""
    if subject.is_library:
        return None
    try:
        seen = [look(subject, inputs, Use("", Mode(True, False, rate)), seed=1) for rate in (None, 0.5)]
        still = look(subject, inputs, Use("", Mode()), seed=1)
        other = look(subject, inputs, Use("", Mode(True, False, 0.5)), seed=2)
    except ModuleFailure:
        return None
    calm = _only(still)
    if calm is None or _dropped(calm) != 0.0:
        return None
    for sight in seen:
        core = _only(sight)
        share = None if core is None else _dropped(core)
        if core is None or share is None or not FEW < share < MANY or _repeats(core, other):
            continue
        steps = [step for step in path_of(core) if step.place is not None]
        evidence = {"dropped_share": share}
        reason = f"in training {share:.0%} of the weights are dropped and the others stay as they are: the mean output "
        reason += "in training is smaller than in eval"
        cause = "dropout without division of the kept weights by 1 - p"
        return CheckResult("mode_round_trip", "fail", reason, evidence, cause, steps[-1].place if steps else None)
    return None


def _only(sight: Sight) -> Core | None:
    return sight.cores[0] if len(sight.cores) == 1 else None


def _dropped(core: Core) -> float | None:
    """Give the share of weights that became zero, None where others than zeros changed."""
    weights, used = core.weights.detach(), core.used_weights.detach()
    if weights.shape != used.shape or core.kind == "sdpa":
        return 0.0 if core.kind == "sdpa" else None
    live = weights > 0
    kept = live & (used != 0)
    if not bool(live.any()) or bool(((used - weights).abs() > KEPT * weights)[kept].any()):
        return None
    return 1.0 - float(kept.sum()) / float(live.sum())


def _repeats(core: Core, other: Sight) -> bool:
    """Tell whether another seed drops the same: then it is a mask."""
    twin = _only(other)
    if twin is None or twin.used_weights.shape != core.used_weights.shape:
        return True
    zeros: Tensor = core.used_weights == 0
    return bool((zeros == (twin.used_weights == 0)).all())
