"""Every softmax of a trace, and the way of its weights to the product with the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from mha_core.doctor.traces.products import Product, is_learned, product
from mha_core.doctor.traces.replay import LAYOUT
from mha_core.doctor.traces.tracing import Step, Trace

PathStep = tuple[Step, Tensor, Tensor]
_PASSES = (
    "dropout dropout_ alpha_dropout feature_dropout masked_fill masked_fill_ mul mul_ div div_ add add_ sub where "
    "nan_to_num nan_to_num_ softmax normalize clamp clamp_ relu __setitem__ conv2d linear batch_norm"
)
PASSES = LAYOUT | frozenset(_PASSES.split())


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax: what it got and when, what it gave, the axis, and the step that gave it."""

    scores: Tensor
    scores_index: int
    weights: Tensor
    step: Step
    dim: int


@dataclass(frozen=True, eq=False)
class Use:
    """The way of weights to the values: path steps, the product, and whether the weights are its left operand."""

    path: tuple[PathStep, ...]
    product: Product
    weights_left: bool


def softmaxes(trace: Trace) -> Iterator[Softmax]:
    """Find every softmax, those written by hand (exp, sum, divide) too."""
    for step in trace.steps:
        if not isinstance(step.output, Tensor) or not step.inputs:
            continue
        given = step.inputs[0]
        if step.name in ("softmax", "_softmax", "_safe_softmax"):
            dim = step.argument(1, "dim")
            dim = (0 if given.dim() in (0, 1, 3) else 1) if dim is None else dim
            yield Softmax(given, step.index, step.output, step, dim)
        elif step.name in ("exp", "exp_"):
            yield from _from_logarithm(trace, step)
        elif step.name in ("div", "div_") and len(step.inputs) == 2:
            yield from _by_hand(trace, step)


def _from_logarithm(trace: Trace, step: Step) -> Iterator[Softmax]:
    made = trace.made_before(step.inputs[0], step.index)
    if made is not None and made.name == "log_softmax":
        yield Softmax(made.inputs[0], made.index, step.output, step, made.argument(1, "dim", -1))
    elif made is not None and made.name == "sub" and len(made.inputs) == 2:
        lower = trace.made_before(made.inputs[1], made.index)
        if lower is not None and lower.name == "logsumexp":
            dim = lower.argument(1, "dim")
            dim = dim if isinstance(dim, int) else dim[0]
            yield Softmax(made.inputs[0], made.index, step.output, step, dim)


def _by_hand(trace: Trace, step: Step) -> Iterator[Softmax]:
    total = trace.made_before(step.inputs[1], step.index)
    while total is not None and total.name in (*LAYOUT, "add", "clamp", "clamp_min") and total.inputs:
        total = trace.made_before(total.inputs[0], total.index)
    if total is None or total.name != "sum":
        return
    top = trace.made_before(step.inputs[0], step.index)
    below = trace.made_before(total.inputs[0], total.index)
    if top is None or below is None or step.inputs[0] is not total.inputs[0]:
        return
    for _ in range(4):
        if top.name in ("mul", "mul_", "masked_fill", "masked_fill_", "where") and top.inputs:
            found = [trace.made_before(t, top.index) for t in top.inputs]
            top = next((s for s in found if s is not None and s.name in ("exp", "exp_")), top)
    if top.name in ("exp", "exp_"):
        dim = total.argument(1, "dim", -1)
        yield Softmax(top.inputs[0], top.index, step.output, step, dim if isinstance(dim, int) else dim[0])


def use(trace: Trace, found: Softmax) -> Use | None:
    """Follow weights to the first product with another activation."""
    waiting: list[tuple[Tensor, int, tuple[PathStep, ...]]] = [(found.weights, found.step.index, ())]
    seen: set[tuple[int, int]] = set()
    best: Use | None = None
    while waiting:
        tensor, index, path = waiting.pop(0)
        if (id(tensor), index) in seen or len(path) > 40:
            continue
        seen.add((id(tensor), index))
        for step in _users(trace, tensor, index):
            multiplied = _values_product(trace, step, tensor)
            if multiplied is not None:
                candidate = Use(path, *multiplied)
                if best is None or step.index < best.product.step.index:
                    best = candidate
            elif step.name in PASSES or product(trace, step) is not None:
                waiting += [(given, step.index, (*path, (step, tensor, given))) for given in _given(step, tensor)]
    return best


def _users(trace: Trace, tensor: Tensor, index: int) -> Iterator[Step]:
    for step in trace.used_by(tensor):
        if step.index > index:
            yield step
            if step.changed is tensor:
                return


def _given(step: Step, tensor: Tensor) -> list[Tensor]:
    return [t for t in step.outputs if t.is_floating_point() and (t is not tensor or step.changed is tensor)]


def _values_product(trace: Trace, step: Step, tensor: Tensor) -> tuple[Product, bool] | None:
    found = product(trace, step)
    if found is None:
        return None
    inputs = step.inputs[-2:]
    if step.name == "sum":
        made = trace.made_before(step.inputs[0], step.index)
        inputs = made.inputs if made is not None else inputs
    content = trace.value(tensor, step.index)
    left = inputs[0] is tensor or found.left is content
    other = inputs[1] if left else inputs[0]
    if is_learned(trace, other, step.index):
        return None  # heads mixed by a learned matrix
    return found, left
