"""Small questions to a trace: what a tensor was made from, and which steps are random."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mha_core.doctor.traces.tracing import Step, Trace

RANDOM_STEPS = (
    "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_",
    "normal_", "normal", "uniform_", "multinomial", "exponential_", "gumbel_softmax", "rrelu",
)  # fmt: skip


def makers(trace: Trace, tensor: Tensor, *, reach: int = 4000) -> Iterator[Step]:
    """Give the steps a tensor comes from, nearest first."""
    waiting: list[tuple[Tensor, int | None]] = [(tensor, None)]
    seen: set[int] = set()
    while waiting and len(seen) < reach:
        current, before = waiting.pop(0)
        step = trace.made(current) if before is None else trace.made_before(current, before)
        if step is None or step.index in seen:
            continue
        seen.add(step.index)
        yield step
        waiting += [(one, step.index) for one in step.inputs]


def drops(step: Step) -> bool:
    """Whether a step draws random numbers, or drops with a probability above 0."""
    if step.name in RANDOM_STEPS:
        return True
    if step.name == "scaled_dot_product_attention":
        return float(step.kwargs.get("dropout_p", step.args[4] if len(step.args) > 4 else 0.0)) > 0
    if "dropout" not in step.name:
        return False
    rate = step.args[1] if len(step.args) > 1 else step.kwargs.get("p", 0.5)
    on = step.args[2] if len(step.args) > 2 else step.kwargs.get("training", step.kwargs.get("train", True))
    return bool(on) and float(rate) > 0
