"""From what softmax got back to the product of queries and keys, and from its operands back to their projections.

On the way every scalar is noted with its line, and everything that hides keys or is added to the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.hiding import Masking, filling, hidden_by_adding, is_binary, plain
from mha_core.doctor.report import Place
from mha_core.doctor.traces.products import Product, is_learned, product
from mha_core.doctor.traces.replay import LAYOUT
from mha_core.doctor.traces.tracing import Step, Trace

FAR = 10_000  # cost of a way that does not exist
Factors = list[tuple[float | None, Place | None]]
PathStep = tuple[Step, Tensor, Tensor]
SHIFTS = ("max", "amax", "logsumexp", "mean", "min", "amin")  # a row's own number, subtracted: softmax does not see it
UNLIKE = ("softmax", "layer_norm", "rms_norm", "embedding", "scaled_dot_product_attention", "log_softmax", "batch_norm")


@dataclass(eq=False)
class Walk:
    """What lies between a product and its softmax.

    Attributes:
        product: of queries and keys; None where the scores come from elsewhere.
        path: (step, input, output) from the product to the softmax, in order.
        factors: scalars after or inside the product, None for what is not a number.
        masks: in order of the path, with the number of path steps that come after each.
        biases: added tensors, likewise.
        smooth: functions such as tanh on the way.
        scalars: the factors again, with their steps.
        shifted: whether a number of its own is subtracted from every row, which softmax does not see.
    """

    product: Product | None = None
    path: list[PathStep] = field(default_factory=list)
    factors: Factors = field(default_factory=list)
    masks: list[tuple[int, Masking]] = field(default_factory=list)
    biases: list[tuple[int, Tensor, float]] = field(default_factory=list)
    smooth: list[Step] = field(default_factory=list)
    scalars: list[tuple[float | None, Step]] = field(default_factory=list)
    shifted: bool = False

    def scale(self, value: float | None, made: Step) -> None:
        """Note a scalar."""
        self.factors.append((value, made.place))
        self.scalars.append((value, made))


class Back:
    """Walks back through one trace. `not_scores`: steps that are products of weights and values."""

    def __init__(self, trace: Trace, not_scores: set[int]) -> None:
        self.trace = trace
        self.not_scores = not_scores
        self.costs: dict[tuple[int, int], int] = {}

    def score_product(self, step: Step) -> Product | None:
        """Read a step as a product of queries and keys."""
        if step.index in self.not_scores:
            return None
        found = product(self.trace, step)
        if found is None or not found.contracted:
            return None
        if any(t.dtype == torch.bool or not t.is_floating_point() or is_binary(t) for t in (found.left, found.right)):
            return None
        return found

    def cost(self, tensor: Tensor, index: int, depth: int = 0) -> int:
        """How far back the nearest product of two activations is, in steps; a projection on the way counts 100."""
        made = self.trace.made_before(tensor, index)
        if made is None or depth > 120:
            return FAR
        key = (id(tensor), made.index)
        if key not in self.costs:
            self.costs[key] = FAR
            self.costs[key] = self._cost(made, depth)
        return self.costs[key]

    def _cost(self, made: Step, depth: int) -> int:
        if made.name in UNLIKE or made.index in self.not_scores:
            return FAR
        found = self.score_product(made)
        learned = False
        if found is not None:
            learned = any(is_learned(self.trace, t, made.index) for t in made.inputs[-2:])
            if not learned:
                return 0
        ways = [self.cost(t, made.index, depth + 1) for t in made.inputs if t.is_floating_point()]
        further = min(ways, default=FAR) + (
            100 if learned or made.name in ("linear", "addmm", "conv2d", "conv1d") else 1
        )
        if learned and found is not None and made.name != "linear":
            return min(further, 1000)  # a learned query against the keys, if nothing better lies behind it
        return min(further, FAR)

    def scores(self, tensor: Tensor, index: int) -> Walk:
        """Walk from what softmax got to the product."""
        walk = Walk()
        for _ in range(200):
            made = self.trace.made_before(tensor, index)
            if made is None or made.name in UNLIKE:
                break
            found = self.score_product(made)
            if found is not None and self._is_the_one(made):
                walk.product = found
                self._inside(walk, found)
                break
            inputs = sorted((t for t in made.inputs if t.is_floating_point()), key=lambda t: self.cost(t, made.index))
            if not inputs or self.cost(inputs[0], made.index) >= FAR:
                break
            self._note(walk, made, inputs[0])
            walk.path.append((made, inputs[0], tensor))
            tensor, index = inputs[0], made.index
        count = len(walk.path)
        walk.path.reverse()
        walk.masks = [(count - position, mask) for position, mask in reversed(walk.masks)]
        walk.biases = [(count - position, bias, sign) for position, bias, sign in reversed(walk.biases)]
        return walk

    def _is_the_one(self, made: Step) -> bool:
        """Whether the walk ends at this product: no better one lies behind."""
        if not any(is_learned(self.trace, t, made.index) for t in made.inputs[-2:]):
            return True
        return min((self.cost(t, made.index) for t in made.inputs), default=FAR) >= FAR

    def _inside(self, walk: Walk, found: Product) -> None:
        if found.alpha != 1:
            walk.scale(found.alpha, found.step)
        if found.added is not None:
            self._added(walk, found.step, found.added * found.beta if found.beta != 1 else found.added, 1.0)

    def _note(self, walk: Walk, made: Step, main: Tensor) -> None:
        """Write down what a step does to the scores besides passing them on."""
        name = plain(made.name)
        if name in ("mul", "div"):
            self._scaled(walk, made, main, name)
        elif name in ("add", "sub", "rsub"):
            other = next((a for a in [*made.args, *made.kwargs.values()] if a is not main), None)
            sign = -1.0 if name == "sub" and made.args[0] is main else 1.0
            if name == "sub" and made.args[0] is not main:
                walk.scale(-1.0, made)
            if isinstance(other, Tensor) and self._is_shift(other, made.index):
                walk.shifted = True
            elif isinstance(other, Tensor):
                self._added(walk, made, self.trace.value(other, made.index), sign * float(made.kwargs.get("alpha", 1)))
        elif name in ("masked_fill", "where", "__setitem__", "index_fill", "masked_scatter"):
            self._filled(walk, made, main)
        elif name == "neg":
            walk.scale(-1.0, made)
        elif name in ("tanh", "clamp", "clip", "relu", "exp", "softplus", "square", "pow", "sigmoid", "log"):
            walk.smooth.append(made)

    def _scaled(self, walk: Walk, made: Step, main: Tensor, name: str) -> None:
        other = made.args[1] if made.args[0] is main else made.args[0]
        if name == "mul" and isinstance(other, Tensor) and other.numel() > 1:
            content = self.trace.value(other, made.index)
            if is_binary(content) and not is_learned(self.trace, other, made.index):
                hidden = content == 0
                walk.masks.append((len(walk.path), Masking("multiplied", 0.0, hidden, made.place, made, content)))
                return
        walk.scale(number(self.trace, other, made.index, name), made)

    def _is_shift(self, other: Tensor, index: int) -> bool:
        made = self.trace.made_before(other, index)
        for _ in range(4):
            if made is not None and made.name in LAYOUT and made.inputs:
                made = self.trace.made_before(made.inputs[0], made.index)
        return made is not None and made.name in SHIFTS and self.cost(made.inputs[0], made.index) < FAR

    def _added(self, walk: Walk, made: Step, other: Tensor, sign: float) -> None:
        position = len(walk.path)
        if other.dtype == torch.bool or (is_binary(other) and bool(other.any()) and self._no_parameter(other, made)):
            if other.numel() > 1:
                hidden = other == 0
                mask = Masking("added as 0 and 1", sign, hidden, made.place, made, other)
                walk.masks.append((position, mask))
            return
        if bool(other.isnan().any()):
            mask = Masking("added", math.nan, other.isnan(), made.place, made, other)
            walk.masks.append((position, mask))
            return
        other = other * sign if sign != 1 else other
        hidden = hidden_by_adding(other)
        if bool(hidden.any()):
            fill = float(other[hidden].max())
            walk.masks.append((position, Masking("added", fill, hidden, made.place, made, other)))
            other = other.masked_fill(hidden, 0.0)
        if bool(other.any()):
            walk.biases.append((position, other, 1.0))

    def _no_parameter(self, other: Tensor, made: Step) -> bool:
        source = next((t for t in made.inputs if t is other), other)
        return not is_learned(self.trace, source, made.index)

    def _filled(self, walk: Walk, made: Step, main: Tensor) -> None:
        found = filling(self.trace, made, main)
        if found is None:
            return
        hidden, fill = found
        whole_rows = hidden.dim() > 0 and (hidden.shape[-1] == 1 or bool((hidden == hidden[..., :1]).all()))
        if fill is not None and fill > -50 and whole_rows:
            return  # rows without any key, made harmless
        mask = next((t for t in made.inputs if t.dtype == torch.bool), None)
        mask = None if mask is None else self.trace.value(mask, made.index)
        walk.masks.append((len(walk.path), Masking("filled", fill, hidden, made.place, made, mask)))

    def projection(self, tensor: Tensor, index: int) -> tuple[Factors, Tensor, int]:
        """Walk from an operand of the product to its projection; scalars met, the tensor there, and its step index."""
        factors: Factors = []
        for _ in range(60):
            made = self.trace.made_before(tensor, index)
            following = None if made is None else self._before(made, factors)
            if made is None or following is None:
                break
            tensor, index = following, made.index
        return factors, tensor, index

    def _before(self, made: Step, factors: Factors) -> Tensor | None:
        name = plain(made.name)
        floating = [t for t in made.inputs if t.is_floating_point() or t.is_complex()]
        if made.name in LAYOUT or name in ("dropout", "view_as_complex", "view_as_real"):
            data = [t for t in floating if not is_learned(self.trace, t, made.index)]
            return self._data(data, made.index)
        if name in ("mul", "div") and len(made.args) == 2:
            others = [a for a in made.args if not isinstance(a, Tensor) or a.numel() == 1]
            if len(others) == 1 and len(floating) >= 1:
                main = made.args[1] if made.args[0] is others[0] else made.args[0]
                if name == "div" and made.args[0] is others[0]:
                    return None
                factors.append((number(self.trace, others[0], made.index, name), made.place))
                return main if isinstance(main, Tensor) else None
            return self._data(floating, made.index) if name == "mul" and self._is_rotating(floating, made) else None
        if name in ("add", "sub") and len(floating) == 2:
            first = self.trace.made_before(floating[0], made.index)
            second = self.trace.made_before(floating[1], made.index)
            if first is not None and second is not None and first.name == second.name == "mul":
                return floating[0]
        return None

    def _is_rotating(self, floating: list[Tensor], made: Step) -> bool:
        """Whether one operand is a table of sines, cosines or phases."""
        tables = [t for t in floating if t.numel() > 1 and not self._from_projection(t, made.index)]
        return len(floating) == 2 and len(tables) == 1 and bool((tables[0].abs() <= 1.0001).all())

    def _data(self, found: list[Tensor], index: int) -> Tensor | None:
        if not found:
            return None
        return next((t for t in found if self._from_projection(t, index)), found[0])

    def _from_projection(self, tensor: Tensor, index: int, depth: int = 40) -> bool:
        made = self.trace.made_before(tensor, index)
        if made is None or depth == 0:
            return False
        if made.name in ("linear", "addmm", "conv1d", "conv2d"):
            return True
        learned = [is_learned(self.trace, t, made.index) for t in made.inputs]
        if made.name in ("matmul", "einsum", "bmm", "mm") and any(learned):
            return True
        return any(self._from_projection(t, made.index, depth - 1) for t in made.inputs if t.dtype != torch.bool)


def number(trace: Trace, other: Any, index: int, name: str) -> float | None:
    """Read a multiplier or divisor as a number; None for a learned one, or one with many elements."""
    if isinstance(other, Tensor):
        if is_learned(trace, other, index):
            return None
        other = trace.value(other, index)
        if other.numel() != 1:
            first = other.reshape(-1)[:1]
            if not bool((other == first).all()):
                return None
            other = first
        other = other.detach().double().item()
    try:
        value = float(other)
        return value if name == "mul" else 1 / value
    except (TypeError, ValueError, ZeroDivisionError):
        return None


def overall(factors: Factors) -> float | None:
    """Multiply the scalars; None where one of them is not a number."""
    numbers = [factor for factor, _ in factors if factor is not None]
    return math.prod(numbers, start=1.0) if len(numbers) == len(factors) else None
