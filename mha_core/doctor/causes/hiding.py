"""How keys are hidden: masks filled in, added, or multiplied into scores, and what they leave visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mha_core.doctor.report import Place
from mha_core.doctor.traces.tracing import Step, Trace

MaskKind = Literal["filled", "added", "multiplied", "added as 0 and 1"]


@dataclass(frozen=True, eq=False)
class Masking:
    """One way keys are hidden: how, the value at hidden positions, where they are (True = hidden), and the line."""

    kind: MaskKind
    fill: float | None
    hidden: Tensor
    place: Place | None
    step: Step
    mask: Tensor | None = None


def together(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast two tensors to one shape."""
    found: list[Tensor] = list(torch.broadcast_tensors(first, second))  # type: ignore[no-untyped-call]
    return found[0], found[1]


def covered(masks: Sequence[Masking], mask: Masking) -> bool:
    """Whether another mask hides at least the same, strongly, as in scores * keep - 1e9 * (1 - keep)."""
    for other in masks:
        if other is mask or other.fill is None or other.fill >= min(mask.fill or 0.0, -8.0):
            continue
        try:
            mine, theirs = together(mask.hidden, other.hidden)
        except RuntimeError:
            continue
        if bool((theirs | ~mine).all()):
            return True
    return False


def is_binary(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and (tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all()))


def hidden_by_adding(other: Tensor) -> Tensor:
    """Find the positions that an added tensor hides: hugely negative, or the one other value beside 0 below -8."""
    low = other <= -1e3
    if not bool(low.any()) and other.numel() > 1:
        values = torch.unique(other.detach())
        if len(values) == 2 and float(values[1]) == 0 and float(values[0]) <= -8:
            return other < 0
    return low


def filling(trace: Trace, made: Step, main: Tensor) -> tuple[Tensor, float | None] | None:
    """Where a step puts another value than the scores', and which. Shapes as in the step."""
    name = plain(made.name)
    value: Any
    if name == "where":
        condition, first, second = made.argument(0, "condition"), made.argument(1, "input"), made.argument(2, "other")
        if condition.is_floating_point():  # scores.where(condition, other)
            condition, first = made.argument(1, "condition"), condition
        hidden = ~condition if first is main else condition
        value = second if first is main else first
    elif made.name == "__setitem__":
        hidden = torch.zeros(main.shape, dtype=torch.bool)
        where = tuple(w for w in made.args[1]) if isinstance(made.args[1], tuple) else made.args[1]
        hidden[where] = True
        value = made.args[2]
        if isinstance(value, Tensor) and value.numel() > 1 and value is main:
            return None
    elif name == "masked_fill":
        hidden, value = made.argument(1, "mask"), made.argument(2, "value")
    else:
        return None
    if isinstance(value, Tensor):
        value = trace.value(value, made.index).detach().double().max().item() if value.numel() else None
    hidden = trace.value(hidden, made.index) if isinstance(hidden, Tensor) else torch.tensor(bool(hidden))
    return hidden.bool(), None if value is None else float(value)


def plain(name: str) -> str:
    """Give the name without the mark of an in-place operation."""
    return name if name.endswith("__") else name.removesuffix("_")
