"""Does the gradient reach every parameter and every token, and is it a number?

Three steps are taken in training mode without dropout, so that a projection that starts at zero is not called dead.
Axes: B batch, S tokens, E width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mha_core.doctor.causes.causes import softmax_cause
from mha_core.doctor.causes.grad_causes import detach_cause
from mha_core.doctor.causes.pointing import parameter_line
from mha_core.doctor.causes.unregistered import Stray, strays
from mha_core.doctor.probes.blocks import Block, cutting_line, dead_block
from mha_core.doctor.probes.learning import (
    BackwardError,
    History,
    ending,
    histories,
    in_place_cause,
    is_used,
)
from mha_core.doctor.probes.uses import Use, look, probe_sizes
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Mode, Subject
from mha_core.doctor.traces.cores import cores

EXPLODING, VANISHING = 1e4, 1e-8  # gradient norm over weight norm
ROUNDING = 1e-5  # of the largest gradient: what is left of a gradient that is zero in exact arithmetic
_KEY_BIAS = re.compile(r"(^|[._])\w*k\w*([._]|_)?bias$|key\w*\.bias$|to_k\.bias$", re.IGNORECASE)


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("gradients", status, reason, evidence, cause, where)


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _stray_result(found: list[Stray], again: list[Stray]) -> CheckResult:
    """Tell of weights outside the parameters, from two calls of one module."""
    first = found[0]
    shape = tuple(first.tensor.shape)
    evidence = {"unregistered_weights": [list(one.tensor.shape) for one in found]}
    what = f"{len(found)} weight tensor{'s' if len(found) > 1 else ''} used in forward, the first of shape {shape},"
    if not any(first.tensor is other.tensor for other in again):
        reason = f"{what} made anew in every call and not in module.parameters(): never trained"
        return _result("fail", reason, evidence, "a layer is built inside forward", first.place)
    reason = f"{what} not in module.parameters(): no optimiser, no state_dict and no .to() sees them"
    cause = "layers in a plain list, or a tensor that is no nn.Parameter: use nn.ModuleList, nn.Parameter or a buffer"
    return _result("fail", reason, evidence, cause, first.place)


def _unregistered(subject: Subject, batch: int, length: int) -> CheckResult | None:
    inputs, module = subject.inputs(batch, length), subject.fresh(training=True, dropout=0.0)
    given = {id(t) for t in (inputs.query, inputs.key, inputs.value)}
    calls = [look(subject, inputs, Use("train", Mode(training=True)), module) for _ in range(2)]
    found, again = (strays(sight.trace, module, given) for sight in calls)
    learned = [stray for stray in found if stray.learned]
    return _stray_result(learned or found, again) if found else None


def _backward_result(failure: BackwardError) -> CheckResult:
    cause, place = in_place_cause(failure)
    return _result("fail", f"the backward pass raises RuntimeError: {failure.text[:300]}", {}, cause, place)


def _no_gradient_at_all(history: History, inputs: Mapping[str, Tensor]) -> CheckResult:
    sources = [*history.module.parameters(), *inputs.values()]
    cause, place = ending(history.trace, sources)
    reason = "the output has no gradient: nothing in the module can be trained"
    return _result("fail", reason, {}, cause, place)


def _not_finite(every: dict[str, History]) -> CheckResult | None:
    for words, history in every.items():
        bad = [name for name, norms in history.norms.items() if not all(map(math.isfinite, norms))]
        if bad:
            step = min(i for n in bad for i, norm in enumerate(history.norms[n]) if not math.isfinite(norm))
            reason = f"the gradient of {_names(bad)} is NaN or infinite in step {step} ({words})"
            return _result("fail", reason, {"parameters": bad, "use": words})
    return None


def _is_key_bias(name: str, history: History) -> bool:
    return dict(history.module.named_parameters())[name].dim() == 1 and bool(_KEY_BIAS.search(name))


def _without(every: dict[str, History]) -> tuple[list[str], list[str]]:
    """Split the parameters that get a gradient in no use: truly dead, and key biases."""
    first = next(iter(every.values()))
    dead = [name for name in first.norms if all(name in history.dead for history in every.values())]
    bias = [name for name in dead if _is_key_bias(name, first)]
    return [name for name in dead if name not in bias], bias


def _why_dead(subject: Subject, name: str, every: dict[str, History], dead: list[str]) -> tuple[str, Place | None]:
    """Explain why a parameter gets no gradient."""
    histories_using = [h for h in every.values() if is_used(h.trace, dict(h.module.named_parameters())[name])]
    if not histories_using:
        return "not used in forward", None
    history = histories_using[0]
    parameters = dict(history.module.named_parameters())
    cause, place = ending(history.trace, [parameters[name]])
    if cause:
        return cause, place
    zero = [n for n, p in parameters.items() if p.dim() > 1 and history.sizes.get(n) == 0 and n in dead]
    if len(zero) > 1:
        line = parameter_line(history.trace, parameters[zero[0]])
        return f"two matrices in a row start at zero ({_names(zero)}): each hides the other's gradient", line
    for core in cores(history.trace)[:1]:
        batch, length = probe_sizes(subject)
        cause, place = softmax_cause(
            history.trace, core, batch=batch, q_len=length, k_len=length, num_heads=subject.num_heads or 1
        )
        if cause:
            return f"the weights do not depend on the scores: {cause}", place
    line = parameter_line(history.trace, parameters[name])
    return "used in forward, but the output does not depend on it", line


def _dead_result(subject: Subject, dead: list[str], every: dict[str, History]) -> CheckResult:
    first = next(iter(every.values()))
    count = len(first.norms)
    cause, place = _why_dead(subject, dead[0], every, dead)
    reason = f"{len(dead)} of {count} parameters get no gradient in three steps: {_names(dead)} ({cause})"
    status = "by_design" if subject.is_library and cause == "not used in forward" else "fail"
    return _result(status, reason, {"parameters": dead}, cause, place)


def _block_result(block: Block, plain: History) -> CheckResult:
    parameter = dict(plain.module.named_parameters())[block.name]
    share = f"{block.what} {block.first} to {block.last} of {block.size} of {block.name}"
    reason = f"{share} get no gradient in three steps: this part is computed and not used"
    evidence = {"parameter": block.name, "shape": list(parameter.shape), block.what: [block.first, block.last]}
    cause, where = detach_cause(plain.trace)
    if not cause:
        cause = "a part of a fused projection is not used: another part is taken twice, or cut off"
        where = cutting_line(plain.trace, parameter) or parameter_line(plain.trace, parameter)
    return _result("fail", reason, evidence, cause, where)


def _tokens_result(subject: Subject, every: dict[str, History]) -> CheckResult | None:
    """Whether every token of every input gets a gradient, in the use without masks."""
    plain = every["no mask"]
    silent = [name for name, norm in plain.token_norms.items() if norm == 0]
    if not silent:
        return None
    reason = f"some tokens of the {silent[0]} input get no gradient, so layers below cannot learn from them"
    batch, length = probe_sizes(subject)
    inputs = subject.inputs(batch, length)
    for tensor in (inputs.query, inputs.key, inputs.value):
        tensor.requires_grad_()
    sight = look(subject, inputs, Use("train", Mode(training=True, dropout=0.0)))
    cause, place = ending(sight.trace, [inputs.query, inputs.key, inputs.value])
    return _result("fail", reason, {"inputs": silent}, cause, place)


def _sizes_result(every: dict[str, History]) -> CheckResult | None:
    """Warn of gradients far too large or too small for their weights."""
    plain = every["no mask"]
    largest = max((max(norms) for norms in plain.norms.values()), default=0.0)
    ratios: dict[str, float] = {}
    for name, norms in plain.norms.items():
        size, norm = plain.sizes[name], max(norms)
        rounding = norm < ROUNDING * largest and _is_key_bias(name, plain)
        if size > 0 and norm > 0 and not rounding:
            ratios[name] = norm / size
    for name, ratio in ratios.items():
        if ratio > EXPLODING:
            reason = f"the gradient of {name} is {ratio:.2g} times as large as its weights: it explodes"
            return _result("warn", reason, {"gradient_over_weight": ratios}, "exploding gradient")
        if ratio < VANISHING:
            reason = f"the gradient of {name} is {ratio:.2g} times as large as its weights: it vanishes"
            return _result("warn", reason, {"gradient_over_weight": ratios}, "vanishing gradient")
    return None


def _fine(every: dict[str, History], bias: list[str], subject: Subject) -> CheckResult:
    plain = every["no mask"]
    late = [name for name, norms in plain.norms.items() if not norms[0] and any(norms)]
    frozen = [name for name, p in subject.module.named_parameters() if not p.requires_grad]
    largest = max((max(norms) for norms in plain.norms.values()), default=0.0)
    evidence: dict[str, Any] = {"parameters": len(plain.norms), "largest_gradient_norm": largest}
    if not plain.norms:
        none = f"all {len(frozen)} parameters are frozen" if frozen else "the module has no parameters"
        return _result("not_applicable", none, {"frozen": frozen})
    if frozen:
        evidence["frozen"] = frozen
    said = f"the gradient reaches all {len(plain.norms)} parameters and every token within three steps"
    rest = f"; {len(frozen)} frozen" if frozen else ""
    if bias:
        shift = "softmax does not see a shift that all keys share"
        return _result("by_design", f"only the key bias ({_names(bias)}) gets no gradient: {shift}", evidence)
    if late:
        reason = (
            f"{_names(late)}: no gradient at step 0, behind a projection that starts at zero, but from step 1 on{rest}"
        )
        return _result("by_design", reason, evidence | {"late": late})
    return _result("pass", said + rest, evidence)


def check(subject: Subject) -> CheckResult:
    """Ask for gradients over three optimiser steps, in every way of calling."""
    batch, length = probe_sizes(subject)
    stray = _unregistered(subject, batch, length)
    if stray is not None:
        return stray
    every: dict[str, History] = {}
    try:
        for words, history in histories(subject, batch, length):
            every[words] = history
    except BackwardError as failure:
        return _backward_result(failure)
    plain = every["no mask"]
    if not plain.reaches_output and any(p.requires_grad for p in subject.module.parameters()):
        return _no_gradient_at_all(plain, {})
    dead, bias = _without(every)
    broken = _not_finite(every)
    if broken is not None:
        return broken
    if dead:
        return _dead_result(subject, dead, every)
    block = dead_block(subject, every)
    if block is not None:
        return _block_result(block, plain)
    return _tokens_result(subject, every) or _sizes_result(every) or _fine(every, bias, subject)
