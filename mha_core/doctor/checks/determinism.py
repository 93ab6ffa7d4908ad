"""Does the module give the same output for the same input, and leave what it was given alone?

Dropout that stays on in eval is the usual mistake. Seeds are those of torch; what python or numpy draws is found by
asking twice with one seed.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.causes.pointing import changed_line
from mha_core.doctor.probes.uses import Use, answer_of, difference, look, mask_choices, probe_sizes
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Mode, Subject
from mha_core.doctor.traces.tracing import Trace, tensors
from mha_core.doctor.traces.walk import drops

SAME = 1e-5  # relative; two runs of one kernel may add in another order
_RANDOM_BY_DESIGN = re.compile(r"performer|favor|reformer|lsh|random|stochastic|gumbel|bayes", re.IGNORECASE)


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("determinism", status, reason, evidence, cause, where)


def _random_line(trace: Trace) -> tuple[str, Place | None]:
    """Name the first step that draws random numbers."""
    for step in trace.steps:
        if drops(step):
            if step.name == "scaled_dot_product_attention":
                return "dropout_p is passed to scaled_dot_product_attention in eval too", step.place
            if "dropout" in step.name:
                return "dropout stays on in eval: training=self.training is missing", step.place
            return f"{step.name} draws random numbers in eval", step.place
    return "", None


def _eval_differs(subject: Subject, use: Use) -> CheckResult | None:
    """Compare eval calls of one module with two seeds, and of two copies with one seed."""
    batch, length = probe_sizes(subject)
    inputs, module = subject.inputs(batch, length), subject.fresh()
    first = look(subject, inputs, use, module, seed=1)
    again = answer_of(subject, inputs, use, module, seed=1).output
    other = answer_of(subject, inputs, use, module, seed=2).output
    repeated, reseeded = difference(again, first.answer.output), difference(other, first.answer.output)
    if max(repeated, reseeded) <= SAME:
        return None
    evidence = {"use": use.words, "relative_change_other_seed": reseeded, "relative_change_same_seed": repeated}
    if repeated <= SAME:
        cause, place = _random_line(first.trace)
        names = f"{type(subject.module).__name__} {place.code if place else ''}"
        designed = "dropout" not in cause and (subject.is_library or _RANDOM_BY_DESIGN.search(names))
        words = f"two eval calls on one input differ by {reseeded:.2g} of the largest output, with the random state"
        return _result("by_design" if designed else "fail", words, evidence, cause, place)
    copy = answer_of(subject, inputs, use, subject.fresh(), seed=1).output
    if difference(copy, first.answer.output) <= SAME:
        words = f"the second eval call of one module differs from the first by {repeated:.2g} of the largest output"
        where = _changing_line(subject, use)
        return _result("fail", words, evidence, "something is kept on self from one call to the next", where)
    words = f"two eval calls with one torch seed differ by {repeated:.2g} of the largest output"
    cause = "randomness that torch's seed does not govern (python's random, numpy, uninitialised memory, the clock)"
    return _result("fail", words, evidence, cause)


def _changing_line(subject: Subject, use: Use) -> Place | None:
    """Find the first step whose result differs in the second call."""
    batch, length = probe_sizes(subject)
    inputs, module = subject.inputs(batch, length), subject.fresh()
    first, second = (look(subject, inputs, use, module, seed=1) for _ in range(2))
    return changed_line(first.trace, second.trace)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _modified(subject: Subject, use: Use) -> CheckResult | None:
    """Compare every tensor the module is given with what it was before the call."""
    batch, length = probe_sizes(subject)
    inputs, module = subject.inputs(batch, length), subject.fresh()
    streams = {_memory(tensor) for tensor in (inputs.query, inputs.key, inputs.value)}
    given: list[tuple[Tensor, Tensor]] = []

    def remember(_: nn.Module, args: Any, kwargs: Any) -> None:
        given.extend((tensor, tensor.clone()) for tensor in tensors((args, kwargs)))

    handle = module.register_forward_pre_hook(remember, with_kwargs=True)
    with torch.no_grad():
        sight = look(subject, inputs, use, module)
    handle.remove()
    for tensor, before in given:
        if torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(before)):
            continue
        what = "input" if _memory(tensor) in streams else "mask"
        lines = [s.place for s in sight.trace.steps if s.changed is not None and _memory(s.changed) == _memory(tensor)]
        reason = f"the call writes into the {what} it was given ({use.words})"
        return _result(
            "fail", reason, {"use": use.words}, f"an in-place operation on the {what}", next(iter(lines), None)
        )
    return None


def _gradient_mode(subject: Subject) -> float:
    """Give how far outputs with and without gradients are apart, in eval."""
    batch, length = probe_sizes(subject)
    inputs = subject.inputs(batch, length)
    recorded = answer_of(subject, inputs, Use("eval"), seed=1).output
    with torch.no_grad():
        return difference(answer_of(subject, inputs, Use("eval, no_grad"), seed=1).output, recorded)


def _training(subject: Subject) -> dict[str, Any]:
    """Tell whether training is random, and whether a seed repeats it."""
    batch, length = probe_sizes(subject)
    inputs = subject.inputs(batch, length)
    mode = Mode(training=True, dropout=0.5)
    outputs = [subject.call(inputs, mode=mode, seed=seed).output for seed in (1, 1, 2)]
    return {
        "train_change_same_seed": difference(outputs[1], outputs[0]),
        "train_change_other_seed_with_dropout_0.5": difference(outputs[2], outputs[0]),
    }


def check(subject: Subject) -> CheckResult:
    """Ask for the same output twice, and for untouched inputs."""
    batch, length = probe_sizes(subject)
    for words, keys, pairs in mask_choices(subject, batch, length, length):
        use = Use(f"eval, {words}", Mode(), keys, pairs)
        found = _modified(subject, use)
        if found is None:
            found = _eval_differs(subject, use)
        if found is not None:
            return found
    evidence = {"eval_change_without_gradients": _gradient_mode(subject), **_training(subject)}
    if evidence["eval_change_without_gradients"] > 1e-3:
        words = f"{evidence['eval_change_without_gradients']:.2g} of the largest output"
        return _result(
            "fail", f"eval outputs under torch.no_grad differ from those with gradients by {words}", evidence
        )
    if evidence["train_change_same_seed"] > SAME:
        reason = f"eval repeats, but training with one seed differs by {evidence['train_change_same_seed']:.2g}"
        return _result("warn", reason, evidence, "randomness that torch's seed does not govern")
    random = evidence["train_change_other_seed_with_dropout_0.5"] > SAME
    return _result(
        "pass",
        f"eval repeats exactly; training {'is random with dropout' if random else 'has no randomness'}",
        evidence,
    )
