"""Runs of a module in half precision, the errors torch raises there in plain words, and large inputs for float16.

Letters: B batch, S tokens, D head_dim.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.probes.uses import Use, answer_of, look
from mha_core.doctor.report import Place
from mha_core.doctor.subject import Inputs, ModuleFailure, Subject
from mha_core.doctor.traces.tracing import Trace, traced

LARGEST_HALF = 65504.0
HIDDEN_SCORE = -1e8  # large inputs give scores far below -1e4
_UNSUPPORTED = re.compile(
    r"not implemented for '?(Half|BFloat16)|not supported .*(half|bfloat16)|unsupported .*scalartype", re.I
)


@dataclass(frozen=True)
class Format:
    """How a module is brought to half precision.

    Attributes:
        words: ".half()". dtype: the format.
        autocast: whether the module stays in float32 under `torch.autocast`.
        tolerance: relative error that rounding explains, with a generous factor (30 units in the last place).
    """

    words: str
    dtype: torch.dtype
    autocast: bool

    @property
    def tolerance(self) -> float:
        """Relative error that rounding may explain."""
        return 30 * torch.finfo(self.dtype).eps

    def module(self, subject: Subject) -> nn.Module:
        """Give a copy of the module in this format."""
        module = subject.fresh()
        if self.autocast:
            return module
        return module.half() if self.dtype == torch.float16 else module.bfloat16()  # complex buffers stay as they are

    def inputs(self, inputs: Inputs) -> Inputs:
        """Give inputs in this format; the same object stays the same object."""
        if self.autocast:
            return inputs
        cast: dict[int, Tensor] = {}
        for tensor in (inputs.query, inputs.key, inputs.value):
            cast.setdefault(id(tensor), tensor.to(self.dtype))
        return Inputs(cast[id(inputs.query)], cast[id(inputs.key)], cast[id(inputs.value)])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Switch autocast on where it is meant."""
        with torch.autocast("cpu", dtype=self.dtype, enabled=True) if self.autocast else contextlib.nullcontext():
            yield


FORMATS = (
    Format(".half()", torch.float16, False),
    Format(".bfloat16()", torch.bfloat16, False),
    Format("autocast to float16", torch.float16, True),
    Format("autocast to bfloat16", torch.bfloat16, True),
)


@dataclass(frozen=True)
class Run:
    """What came of a run: an output, or a failure with the operations up to it."""

    output: Tensor | None
    weights: Tensor | None
    failure: ModuleFailure | None
    trace: Trace


def run(subject: Subject, form: Format, inputs: Inputs, use: Use) -> Run:
    """Call the module in a format, and keep the failure where it raises."""
    module, given = form.module(subject), form.inputs(inputs)
    trace = Trace()
    try:
        with form.running(), traced(subject.files) as trace:
            answer = answer_of(subject, given, use, module)
    except ModuleFailure as failure:
        return Run(None, None, failure, trace)
    return Run(answer.output, answer.weights, None, trace)


def is_unsupported(failure: ModuleFailure) -> bool:
    """Whether torch itself lacks the operation in this format on CPU."""
    return bool(_UNSUPPORTED.search(failure.text))


def _promoted(trace: Trace, dtype: torch.dtype) -> tuple[str, Place | None]:
    """Find the first step that made float32 of half precision."""
    for step in trace.steps:
        output = step.output
        inputs = [one.dtype for one in step.inputs]
        if isinstance(output, Tensor) and output.dtype == torch.float32 and dtype in inputs:
            if step.name in ("softmax", "_softmax"):
                return "softmax gives float32 and is not cast back to the dtype of the values", step.place
            if torch.float32 in inputs:
                return "a float32 tensor (a table or mask made in float32) turns the result into float32", step.place
            return f"{step.name} gives float32 and is not cast back", step.place
    return "", None


def crash_cause(found: Run, form: Format) -> tuple[str, Place | None]:
    """Name what makes a module raise in half precision only."""
    failure = found.failure
    assert failure is not None
    if "without overflow" in failure.text:
        name = "float16" if form.dtype == torch.float16 else "bfloat16"
        least = f"{torch.finfo(form.dtype).min:.4g}"
        words = f"the mask value cannot be held by {name} (smallest {least}): use -inf or torch.finfo(scores.dtype).min"
        return words, failure.place
    if re.search(r"attn_mask", failure.text) and re.search(r"dtype", failure.text):
        return "the mask is made in another dtype than the queries", failure.place
    if re.search(r"dtype|scalar type|same type|Float|BFloat16|Half|Double", failure.text):
        cause, place = _promoted(found.trace, form.dtype)
        if cause:
            return cause, place or failure.place
        return (
            "tensors of different dtypes meet: something is made in float32 whatever the module's dtype",
            failure.place,
        )
    return "", failure.place


def broken_step(trace: Trace) -> tuple[str, Place | None]:
    """Find the first step whose result is NaN or infinite though what it took was not; masks with -inf are left out."""
    for step in trace.steps:
        output = step.output
        if not isinstance(output, Tensor) or not output.is_floating_point() or not output.numel():
            continue
        bad = bool(output.isnan().any()) or bool((output == torch.inf).any())
        taken = [one for one in step.inputs if one.is_floating_point()]
        if bad and taken and not any(bool(one.isnan().any()) or bool((one == torch.inf).any()) for one in taken):
            return step.name, step.place
    return "", None


def tiny_constant(trace: Trace, dtype: torch.dtype) -> tuple[float, Place | None] | None:
    """Find a positive constant that the format rounds to 0."""
    for step in trace.steps:
        values: list[Any] = [*step.args, *step.kwargs.values()]
        for value in values:
            if isinstance(value, float) and value > 0 and float(torch.tensor(value, dtype=dtype)) == 0:
                return value, step.place
    return None


def largest_product(subject: Subject, inputs: Inputs) -> tuple[float, float, float] | None:
    """Measure in float32: the largest |q.k| before any scaling, the largest |score|, and D. None where unknown."""
    found = [core for core in look(subject, inputs, Use("eval")).cores if core.factor]
    if not found:
        return None
    sizes = []
    for core in found:
        scores = core.scores.detach()
        seen = scores[scores > HIDDEN_SCORE]
        largest = float(seen.abs().max()) if seen.numel() else 0.0
        sizes.append((largest / abs(core.factor or 1.0), largest, float(core.q.shape[-1])))
    return max(sizes)


def overflowing_inputs(subject: Subject, batch: int, length: int) -> tuple[Inputs, float] | None:
    """Find inputs whose |q.k| just passes what float16 holds while the scaled scores do not.

    Returns:
        The inputs and the largest |q.k|; None where scores do not grow with the inputs or there is nothing to see.
    """
    scale = 1.0
    for _ in range(4):
        inputs = subject.inputs(batch, length, seed=7, scale=scale)
        found = largest_product(subject, inputs)
        if found is None or not 0 < found[0] < float("inf"):
            return None
        raw, scaled, head_dim = found
        target = LARGEST_HALF * head_dim**0.25
        if raw > 1.05 * LARGEST_HALF and scaled < 0.9 * LARGEST_HALF and raw < 1.5 * target:
            return inputs, raw
        scale *= (target / raw) ** 0.5
    return None
