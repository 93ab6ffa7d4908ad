"""Does the module work in float16 and bfloat16, by itself and under autocast, with every mask it takes?

Normal inputs have to give what float32 gives, up to rounding. Very large ones, whose q kᵀ passes 65504 before the scale
makes it small again, are a warning: the same numbers scaled before the product would fit.
"""

from __future__ import annotations

from typing import Any

import torch

from mha_core.doctor.probes.half_run import (
    FORMATS,
    Format,
    broken_step,
    crash_cause,
    is_unsupported,
    overflowing_inputs,
    run,
    tiny_constant,
)
from mha_core.doctor.probes.uses import Use, answer_of, difference, probe_sizes, row_kept, uses
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Subject


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("half_precision", status, reason, evidence, cause, where)


def _judge(subject: Subject, form: Format, inputs: Inputs, use: Use, reference: torch.Tensor) -> CheckResult | float:
    """Compare one run with float32; the relative error where it is small."""
    found = run(subject, form, inputs, use)
    evidence: dict[str, Any] = {"format": form.words, "use": use.words}
    if found.failure is not None:
        if is_unsupported(found.failure):
            return 0.0
        cause, place = crash_cause(found, form)
        reason = f"{form.words} raises {found.failure.text} ({use.words}); float32 does not"
        loud_and_rare = (
            form.dtype == torch.float16 and "without overflow" in found.failure.text
        )  # a constant such as -1e9
        status = "warn" if loud_and_rare else "fail"
        return _result(status, reason, evidence | {"error": found.failure.text}, cause, place)
    assert found.output is not None
    rows = row_kept(use, reference) & torch.isfinite(reference).all(-1)
    if not bool(torch.isfinite(found.output[rows]).all()):
        tiny = tiny_constant(found.trace, form.dtype)
        step, place = broken_step(found.trace)
        cause = f"{step} gives the first value that is not finite" if step else ""
        if tiny is not None and step not in ("matmul", "bmm", "softmax", "linear"):
            cause, place = f"the constant {tiny[0]:g} is 0 in {form.dtype}: 0/0".replace("torch.", ""), tiny[1]
        count = int((~torch.isfinite(found.output)).sum())
        share = f"{count} of {found.output.numel()} values"
        reason = f"{form.words} gives NaN or infinity at normal inputs in {share} ({use.words})"
        return _result("fail", reason, evidence, cause, place)
    error = difference(found.output, reference, rows)
    if error > form.tolerance:
        reason = (
            f"{form.words} differs from float32 by {error:.2g} of the largest output, where rounding explains "
            f"{form.tolerance:.2g} ({use.words})"
        )
        return _result("warn", reason, evidence | {"relative_error": error})
    return error


def _overflow(subject: Subject, batch: int, length: int) -> tuple[CheckResult | None, dict[str, Any]]:
    """Try inputs whose unscaled products pass 65504."""
    found = overflowing_inputs(subject, batch, length)
    if found is None:
        return None, {}
    inputs, raw = found
    use = Use("eval, large inputs")
    reference = answer_of(subject, inputs, use).output
    if not bool(torch.isfinite(reference).all()) or float(reference.abs().max()) > 6e4:
        return None, {}
    evidence: dict[str, Any] = {"largest_unscaled_product": round(raw), "input_std": float(inputs.query.std())}
    for form in FORMATS:
        if form.dtype != torch.float16:
            continue
        seen = run(subject, form, inputs, use)
        if seen.output is None or bool(torch.isfinite(seen.output).all()):
            continue
        _, place = broken_step(seen.trace)
        reason = (
            f"{form.words} gives NaN for inputs of standard deviation {evidence['input_std']:.0f}, whose q kᵀ reaches "
            f"{raw:.0f} before it is scaled (float16 ends at 65504); float32 and float16 scaled first are fine"
        )
        status = "by_design" if subject.is_library else "warn"
        return _result(status, reason, evidence, "the scale comes after the product: scale q first", place), evidence
    return None, evidence


def _unsupported(subject: Subject, inputs: Inputs) -> list[str]:
    missing = []
    for form in FORMATS:
        failure = run(subject, form, inputs, Use("eval")).failure
        if failure is not None and is_unsupported(failure):
            missing.append(form.words)
    return missing


@torch.no_grad()
def check(subject: Subject) -> CheckResult:
    """Ask for the outputs of float32 in each half-precision format."""
    batch, length = probe_sizes(subject)
    inputs = subject.inputs(batch, length)
    ways = uses(subject, batch, length, training=False)
    references = [(use, answer_of(subject, inputs, use).output) for use in ways]
    missing = _unsupported(subject, inputs)
    formats = [form for form in FORMATS if form.words not in missing]
    if not formats:
        return _result("not_applicable", "torch lacks an operation of this module in half precision on CPU", {})
    found = [_judge(subject, form, inputs, use, reference) for form in formats for use, reference in references]
    problems = [result for result in found if isinstance(result, CheckResult)]
    if problems:
        return min(problems, key=lambda result: ("fail", "warn").index(result.status))
    overflow, evidence = _overflow(subject, batch, length)
    if overflow is not None:
        return overflow
    worst = max((error for error in found if isinstance(error, float)), default=0.0)
    evidence |= {"largest_relative_error": worst, "skipped_formats": missing, "ways_tried": len(found)}
    reason = (
        f"{len(formats)} half-precision formats in {len(references)} ways of calling agree with float32 to {worst:.2g}"
    )
    return _result("pass", reason, evidence)
