"""Origins of the operands of an attention computation, oriented as in its `Core`, and the steps they went through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.doctor.report import Place
from mha_core.doctor.traces.alignment import queries_and_keys, weights_and_values
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.forwards import PASSES
from mha_core.doctor.traces.origins import Origin, Origins, unpacked
from mha_core.doctor.traces.products import is_learned, product
from mha_core.doctor.traces.replay import LAYOUT
from mha_core.doctor.traces.tracing import Step, Trace

RESHAPES = ("view", "reshape", "unflatten", "flatten", "_unsafe_view", "view_as", "reshape_as", "unfold", "ravel")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the call that was traced."""

    batch: int
    q_len: int
    k_len: int
    num_heads: int


@dataclass(frozen=True, eq=False)
class Operands:
    """Origins of queries (..., Sq, D), keys (..., Sk, D) and values (..., Sk, Dv); None where they cannot be told."""

    q: Origin | None
    k: Origin | None
    v: Origin | None
    origins: Origins


def operands(trace: Trace, core: Core, sizes: Sizes) -> Operands:
    """Number the operands of one attention computation."""
    origins = Origins(trace, sizes.batch, (sizes.q_len, sizes.k_len), cores(trace))
    sources = (core.q_source, core.k_source, core.v_source)
    q, k, v = (None if source is None else origins.of(*source) for source in sources)
    if core.kind == "sdpa":
        if q is not None and k is not None and v is not None and k.dim() > 2 and k.shape[-3] not in (1, q.shape[-3]):
            k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
        return Operands(_origin(q, q), _origin(k, k), _origin(v, v), origins)
    score, way, aligned = core.walk.product if core.walk else None, core.use, core.aligned
    assert score is not None
    assert way is not None
    assert aligned is not None
    left, right = (k, q) if aligned.swapped else (q, k)
    left, right = (_shaped(n, t) for n, t in ((left, score.left), (right, score.right)))
    queries, keys = queries_and_keys(
        replace(score, left=left, right=right), aligned.swapped, aligned.row, aligned.columns
    )
    made = way.product
    read = _shaped(v, made.right if way.weights_left else made.left)
    used = torch.zeros(made.left.shape if way.weights_left else made.right.shape)
    left, right = (used, read) if way.weights_left else (read, used)
    _, values_of = weights_and_values(replace(made, left=left, right=right), way.weights_left)
    return Operands(_origin(q, queries), _origin(k, keys), _origin(v, values_of), origins)


def _origin(source: Tensor | None, oriented: Tensor | None) -> Origin | None:
    return None if source is None or oriented is None else unpacked(oriented)


def _shaped(numbers: Tensor | None, like: Tensor) -> Tensor:
    if numbers is None:
        return torch.full(like.shape, -1.0, dtype=torch.float64)
    if numbers.shape != like.shape and numbers.transpose(-2, -1).shape == like.shape:
        return numbers.transpose(-2, -1)
    return numbers.reshape(like.shape)


def is_projection(trace: Trace, step: Step) -> bool:
    """Whether a step multiplies by learned weights."""
    if step.name in ("linear", "conv1d", "conv2d", "addmm"):
        return True
    return product(trace, step) is not None and any(is_learned(trace, t, step.index) for t in step.inputs)


def chain(trace: Trace, source: tuple[Tensor, int] | None) -> list[tuple[Step, Tensor]]:
    """List the steps between a projection and an operand, in order, with what they gave; the projection is first."""
    found: list[tuple[Step, Tensor]] = []
    tensor, index = source if source is not None else (None, 0)
    while tensor is not None and len(found) < 60:
        made = trace.made_before(tensor, index)
        if made is None:
            break
        found.append((made, tensor))
        if is_projection(trace, made) or product(trace, made) is not None:
            break
        floating = [t for t in made.inputs if t.is_floating_point() and not is_learned(trace, t, made.index)]
        tensor, index = max(floating, key=torch.Tensor.numel, default=None), made.index
    return found[::-1]


def reshape_place(steps: list[tuple[Step, Tensor]]) -> Place | None:
    """Find the line of the first reshape after the projection, else of the first step that moves anything."""
    named = [step for step, _ in steps if step.name in RESHAPES] or [step for step, _ in steps if step.name in LAYOUT]
    return next((step.place for step in named if step.place is not None), None)


def joined(trace: Trace, core: Core) -> tuple[list[tuple[Step, Tensor]], Step | None]:
    """Follow the values' product to the output projection, or to the end: steps with what they gave, the projection."""
    start = core.values_step
    assert start is not None
    waiting: list[tuple[Tensor, int, list[tuple[Step, Tensor]]]] = [
        (start.output, start.index, [(start, start.output)])
    ]
    seen: set[int] = set()
    longest = waiting[0][2]
    while waiting:
        tensor, index, path = waiting.pop(0)
        longest = path if len(path) > len(longest) else longest
        if len(path) > 30:
            continue
        for step in _later(trace, tensor, index):
            if is_projection(trace, step):
                return path, step
            if step.name in PASSES and step.index not in seen:
                seen.add(step.index)
                given = [t for t in step.outputs if t.is_floating_point() and t is not tensor]
                given = given or ([tensor] if step.changed is tensor else [])
                waiting += [(t, step.index, [*path, (step, t)]) for t in given[:1]]
    return longest, None


def _later(trace: Trace, tensor: Tensor, index: int) -> Iterator[Step]:
    return (step for step in trace.used_by(tensor) if step.index > index)
