"""Products of two tensors, whatever they are written with, as one kind of thing: an einsum with labelled axes.

matmul, bmm, baddbmm, einsum, linear with an activation as its weight, and a broadcast product that is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.traces.tracing import Step, Trace

Labels = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Product:
    """left and right (content as it was), and labels of the axes of left, right and out; a broadcast axis of size 1
    has the label of what it is broadcast to. `added` came in with the product (baddbmm), `alpha` and `beta` too."""

    step: Step
    left: Tensor
    right: Tensor
    out: Tensor
    left_labels: Labels
    right_labels: Labels
    out_labels: Labels
    alpha: float = 1.0
    added: Tensor | None = None
    beta: float = 1.0

    @property
    def contracted(self) -> Labels:
        """Labels summed over."""
        return tuple(n for n in self.left_labels if n in self.right_labels and n not in self.out_labels)

    def size(self, label: int) -> int:
        """Size of an axis."""
        pairs = [*zip(self.left_labels, self.left.shape, strict=True)]
        pairs += zip(self.right_labels, self.right.shape, strict=True)
        return max(size for name, size in pairs if name == label)

    def only(self, mine: Labels, others: Labels) -> Labels:
        """Labels that one operand has for itself in the result, in the order of the result."""
        return tuple(n for n in self.out_labels if n in mine and n not in others)


def product(trace: Trace, step: Step) -> Product | None:
    """Read a step as a product of two tensors, None where it is none."""
    reader = READERS.get(step.name)
    if reader is None or not isinstance(step.output, Tensor):
        return None
    try:
        return reader(trace, step)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None


def oriented(tensor: Tensor, labels: Labels, wanted: Iterable[int]) -> Tensor:
    """Permute to the wanted labels; an axis it lacks has size 1. A label it has and nobody wants must have size 1."""
    wanted = tuple(wanted)
    for position in reversed(range(len(labels))):
        if labels[position] not in wanted:
            tensor = tensor.squeeze(position)
    kept = [n for n in labels if n in wanted]
    tensor = tensor.permute([kept.index(n) for n in wanted if n in kept])
    for position, name in enumerate(wanted):
        if name not in kept:
            tensor = tensor.unsqueeze(position)
    return tensor


def is_learned(trace: Trace, tensor: Tensor, index: int, depth: int = 12) -> bool:
    """Whether a tensor is a parameter or made from parameters alone."""
    if isinstance(tensor, torch.nn.Parameter):
        return True
    made = trace.made_before(tensor, index)
    if made is None or depth == 0:
        return False
    floating = [t for t in made.inputs if t.is_floating_point() and not (t is made.changed and made.name == "copy_")]
    return bool(floating) and all(is_learned(trace, t, made.index, depth - 1) for t in floating)


def _matmul(trace: Trace, step: Step) -> Product:
    left, right = (trace.value(t, step.index) for t in step.inputs[:2])
    return _multiplied(step, left, right, _after(trace, step))


def _after(trace: Trace, step: Step) -> Tensor:
    return trace.value(step.output, step.index + 1)


def _multiplied(step: Step, left: Tensor, right: Tensor, out: Tensor, **extra: Any) -> Product:
    rank = max(left.dim(), right.dim(), 2)
    batch = tuple(range(rank - 2))
    rows, inner, columns = rank, rank + 1, rank + 2
    left_labels = (*batch[rank - left.dim() :], rows, inner) if left.dim() > 1 else (inner,)
    right_labels = (*batch[rank - right.dim() :], inner, columns) if right.dim() > 1 else (inner,)
    out_labels = (*batch, *((rows,) if left.dim() > 1 else ()), *((columns,) if right.dim() > 1 else ()))
    return Product(step, left, right, out, left_labels, right_labels, out_labels, **extra)


def _baddbmm(trace: Trace, step: Step) -> Product:
    added, left, right = (trace.value(t, step.index) for t in step.inputs[:3])
    beta, alpha = float(step.kwargs.get("beta", 1)), float(step.kwargs.get("alpha", 1))
    extra: dict[str, Any] = {"alpha": alpha, "added": None if beta == 0 else added, "beta": beta}
    return _multiplied(step, left, right, _after(trace, step), **extra)


def _linear(trace: Trace, step: Step) -> Product | None:
    given, weight = step.argument(0, "input"), step.argument(1, "weight")
    if is_learned(trace, weight, step.index) or step.argument(2, "bias") is not None:
        return None
    given, weight = trace.value(given, step.index), trace.value(weight, step.index)
    return _multiplied(step, given, weight.transpose(-2, -1), _after(trace, step))


def _einsum(trace: Trace, step: Step) -> Product | None:
    if not isinstance(step.args[0], str) or len(step.inputs) != 2:
        return None
    left, right = (trace.value(t, step.index) for t in step.inputs)
    equation = step.args[0].replace(" ", "")
    terms, _, out = equation.partition("->")
    first, second = terms.split(",")
    if "->" not in equation:
        names = (first + second).replace(".", "")
        out = ("..." if "." in terms else "") + "".join(sorted(n for n in set(names) if names.count(n) == 1))
    result = _after(trace, step)
    labels = tuple(_labels(term, tensor.dim()) for term, tensor in ((first, left), (second, right), (out, result)))
    if any(len(set(found)) != len(found) for found in labels):
        return None
    return Product(step, left, right, result, labels[0], labels[1], labels[2])


def _labels(term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    spared = rank - len(before) - len(after)
    return (*map(ord, before), *(range(-spared, 0) if dots else ()), *map(ord, after))


def _tensordot(trace: Trace, step: Step) -> Product:
    left, right = (trace.value(t, step.index) for t in step.inputs[:2])
    dims = step.argument(2, "dims", 2)
    if isinstance(dims, int):
        dims = (list(range(left.dim() - dims, left.dim())), list(range(dims)))
    pairs = [(a % left.dim(), b % right.dim()) for a, b in zip(*dims, strict=True)]
    left_labels = tuple(range(left.dim()))
    inner = {b: a for a, b in pairs}
    right_labels = tuple(inner.get(i, left.dim() + i) for i in range(right.dim()))
    kept = [n for n in (*left_labels, *right_labels) if n not in inner.values()]
    return Product(step, left, right, _after(trace, step), left_labels, right_labels, tuple(kept))


def _summed(trace: Trace, step: Step) -> Product | None:
    dim = step.argument(1, "dim")
    made = trace.made_before(step.inputs[0], step.index)
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if made is None or made.name != "mul" or len(made.inputs) != 2 or len(dims) != 1:
        return None
    left, right = (trace.value(t, made.index) for t in made.inputs)
    rank = step.inputs[0].dim()
    gone = dims[0] % rank
    sizes = step.inputs[0].shape
    keep = bool(step.argument(2, "keepdim", False))
    if keep:
        return None

    def labels(tensor: Tensor) -> tuple[Tensor, Labels]:
        tensor = tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape)
        spread = [i for i in range(rank) if tensor.shape[i] == 1 and sizes[i] > 1]
        return tensor.squeeze(spread), tuple(i for i in range(rank) if i not in spread)

    (left, left_labels), (right, right_labels) = labels(left), labels(right)
    if gone not in left_labels or gone not in right_labels:
        return None
    out_labels = tuple(i for i in range(rank) if i != gone)
    return Product(step, left, right, _after(trace, step), left_labels, right_labels, out_labels)


READERS: dict[str, Callable[[Trace, Step], Product | None]] = {
    "matmul": _matmul,
    "bmm": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "baddbmm": _baddbmm,
    "baddbmm_": _baddbmm,
    "addmm": _baddbmm,
    "einsum": _einsum,
    "sum": _summed,
    "tensordot": _tensordot,
    "linear": _linear,
}
