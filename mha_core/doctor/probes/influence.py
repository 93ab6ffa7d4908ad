"""Which token moves which output: one token is replaced, everything else stays, and the rows that change are read.

The tools every check of values shares. A `Probe` is one copy of the module, called again and again in one mode; what
it gives is compared bit by bit up to rounding (`NOISE`), so that a leak of one part in a million is still seen. What
a mask hides and what a row may depend on is for the checks to say.

Axes: B batch, Sq queries, Sk keys, S tokens of self-attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.knobs import dropout_knobs
from mha_core.doctor.subject import Answer, Inputs, Mode, Subject
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.tracing import Trace, traced

Part = Literal["tokens", "query", "memory", "key", "value"]

SMALLER = (1.0, 0.2, 0.03)  # scales to draw inputs with: scores far apart hide a dependence in rounding
NOISE = 2e-6  # relative change of an output that rounding alone can cause (float32, same shapes)
ROUNDING = 2e-4  # relative difference between two correct computations of one output in different shapes (float32)
_POSITIONS = re.compile(r"pos|rel|bias|table|embed|token|sink|rot", re.IGNORECASE)
_GATES = re.compile(r"gate|gamma|alpha|scale|ls\d?$|lambda|weight", re.IGNORECASE)
_LOCAL = re.compile(
    r"window|local|block|sparse|dilat|stride|top_?k|random|shift|bucket|hash|chunk|routing", re.IGNORECASE
)


@dataclass
class Probe:
    """One copy of the module under test, and how it is called.

    Attributes:
        masks: keep_keys, keep_pairs and causal, as `Subject.call` takes them.
    """

    subject: Subject
    mode: Mode = field(default_factory=Mode)
    masks: dict[str, Any] = field(default_factory=dict)
    module: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.module = awake(self.subject, self.mode)

    @property
    def as_copied(self) -> Mode:
        """The mode of a call: dropout is set in the copy already."""
        return replace(self.mode, dropout=None)

    def under(self, masks: dict[str, Any]) -> Probe:
        """Give a probe of the same copy, called with other masks."""
        twin = copy(self)
        twin.masks = masks
        return twin

    def answer(self, inputs: Inputs) -> Answer:
        """Call the module without gradients."""
        with torch.no_grad():
            return self.subject.call(inputs, mode=self.as_copied, module=self.module, **self.masks)

    def output(self, inputs: Inputs) -> Tensor:
        """Give the output (B, Sq, anything)."""
        return self.answer(inputs).output

    def look(self, inputs: Inputs, *, grad: bool = False) -> Look:
        """Call the module and watch: the answer, the trace and the attention computations found in it."""
        with torch.set_grad_enabled(grad), traced(self.subject.files) as trace:
            answer = self.subject.call(inputs, mode=self.as_copied, module=self.module, **self.masks)
        return Look(answer, trace, found_cores(trace))


@dataclass(frozen=True)
class Look:
    """What a watched call showed."""

    answer: Answer
    trace: Trace
    cores: tuple[Core, ...]


def found_cores(trace: Trace) -> tuple[Core, ...]:
    """Find the attention computations of a trace; an unreadable trace has none."""
    try:
        return cores(trace)
    except Exception:  # foreign code can hold anything: a check then goes on without its inner view
        return ()


def awake(subject: Subject, mode: Mode = Mode()) -> nn.Module:
    """Copy the module, with projections and gates that start at zero set to small numbers.

    A zero-initialised output projection or gate is good practice, and would hide everything behind it.
    """
    try:
        module = subject.fresh(training=mode.training, dropout=mode.dropout)
    except AttributeError:  # a knob in a frozen configuration; the copy is ours to change
        module = subject.fresh(training=mode.training)
        for holder, name in list(dropout_knobs(module)):
            object.__setattr__(holder, name, mode.dropout)
    generator = torch.Generator().manual_seed(11)
    for name, parameter in module.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if parameter.is_floating_point() and parameter.numel() and _asleep(name, last, parameter):
            spread = torch.randn(parameter.shape, generator=generator) * max(parameter.shape[-1:] or (1,)) ** -0.5
            with torch.no_grad():
                parameter.copy_(spread if parameter.dim() > 1 else torch.full_like(parameter, 0.5))
    return module


def _asleep(name: str, last: str, parameter: Tensor) -> bool:
    if _POSITIONS.search(name) or (parameter.dim() == 1 and parameter.numel() > 1 and not _GATES.search(last)):
        return False
    first = parameter.detach().flatten()[0]
    return bool(first.abs() < 0.01) and bool((parameter.detach() == first).all())


def key_part(inputs: Inputs) -> Part:
    """Name what has to be replaced to replace a token of the memory: in self-attention it is the query's as well."""
    return "tokens" if inputs.key is inputs.query else "memory"


def replaced(inputs: Inputs, other: Inputs, part: Part, samples: Any, tokens: Any) -> Inputs:
    """Take some tokens of some samples from `other`, keeping which tensors are one object.

    Args:
        part: "tokens" of self-attention, of the "query", of the "memory" (key and value), or of the "key" or "value".
        samples, tokens: an index, a slice or an index tensor each.
    """

    def mixed(mine: Tensor, theirs: Tensor) -> Tensor:
        copy = mine.clone()
        copy[samples, tokens] = theirs[samples, tokens]
        return copy

    if part == "tokens":
        query = mixed(inputs.query, other.query)
        return Inputs(query, query, query)
    query, key, value = inputs.query, inputs.key, inputs.value
    if part == "query":
        return Inputs(mixed(query, other.query), key, value)
    new_key = mixed(key, other.key) if part in ("memory", "key") else key
    if value is key and part in ("memory", "key"):
        return Inputs(query, new_key, new_key)
    return Inputs(query, new_key, mixed(value, other.value) if part in ("memory", "value") else value)


def selected(inputs: Inputs, samples: Any) -> Inputs:
    """Take some samples, keeping which tensors are one object. samples: a slice or an index tensor."""
    return mapped(inputs, lambda tensor: tensor[samples])


def mapped(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Change the three tensors, keeping which of them are one object."""
    query = change(inputs.query)
    key = query if inputs.key is inputs.query else change(inputs.key)
    value = key if inputs.value is inputs.key else query if inputs.value is inputs.query else change(inputs.value)
    return Inputs(query, key, value)


def movement(before: Tensor, after: Tensor) -> Tensor:
    """Give the largest change of every row, relative to the largest finite number before. (B, Sq, E) -> (B, Sq).

    NaN that appears or vanishes is an infinite change; NaN that stays is none.
    """
    finite = before.detach()[before.isfinite()]
    size = finite.abs().max().clamp_min(1e-30) if finite.numel() else torch.tensor(1.0)
    change = (after.double() - before.double()).abs() / size.double()
    change = torch.where((before == after) | (before.isnan() & after.isnan()), 0.0, change)
    change = torch.where(before.isnan() != after.isnan(), torch.inf, change)
    return change.nan_to_num(nan=torch.inf, posinf=torch.inf).flatten(2).amax(-1)


def influence(
    probe: Probe, inputs: Inputs, part: Part, *, sample: int = 0, tokens: Iterable[int] | None = None
) -> Tensor:
    """Replace one token of one sample after the other and read how much every output moves: (tokens, B, Sq)."""
    length = inputs.query.shape[1] if part in ("tokens", "query") else inputs.key.shape[1]
    other = redrawn(inputs)
    before = probe.output(inputs)
    moved = [
        movement(before, probe.output(replaced(inputs, other, part, sample, token)))
        for token in (range(length) if tokens is None else tokens)
    ]
    return torch.stack(moved)


def redrawn(inputs: Inputs, seed: int = 101) -> Inputs:
    """Draw other inputs of the same shapes and the same size."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(tensor: Tensor) -> Tensor:
        size = tensor[tensor.isfinite()].double().std() if tensor.numel() > 1 else tensor.abs().double().max()
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * size.to(tensor.dtype)

    return mapped(inputs, drawn)


def depends(
    probe: Probe,
    draw: Callable[[int], Inputs],
    part: Part | None = None,
    *,
    tries: int = 3,
    wanted: Tensor | None = None,
) -> Tensor:
    """Give which output of sample 0 depends on which token of it, (Sq, Sk); found by several draws together.

    Scores far apart can hide a dependence in rounding, so small inputs and further draws are tried as well.

    Args:
        draw: gives inputs from a seed.
        wanted: (Sq, Sk), stop when all of these are found; all where None.
    """
    found: Tensor | None = None
    for attempt in range(tries):
        inputs = mapped(draw(attempt), partial(torch.mul, other=SMALLER[attempt % len(SMALLER)]))
        seen = influence(probe, inputs, part or key_part(inputs))[:, 0].T > NOISE
        found = seen if found is None else found | seen
        if bool((found if wanted is None else found | ~wanted).all()):
            break
    assert found is not None
    return found


def hiding(subject: Subject, keep: Tensor, q_len: int) -> dict[str, Tensor] | None:
    """Say how to hide keys from all queries: `keep` (B, Sk) as arguments of `Subject.call`, None where it cannot be."""
    if subject.key_mask and subject.accepts(keep_keys=keep):
        return {"keep_keys": keep}
    by_sample = keep.unsqueeze(1).expand(-1, q_len, -1)
    if subject.sample_pair_mask and subject.accepts(keep_pairs=by_sample):
        return {"keep_pairs": by_sample}
    if subject.pair_mask and bool((keep == keep[:1]).all()) and subject.accepts(keep_pairs=by_sample[0]):
        return {"keep_pairs": by_sample[0]}
    return None


def says_local(subject: Subject) -> bool:
    """Tell whether names in the module speak of a part of the tokens: windows, blocks, strides, the best few."""
    parts = list(subject.module.modules())
    words = [type(part).__name__ for part in parts] + [name for part in parts for name in vars(part)]
    return any(_LOCAL.search(word) for word in words)
