"""The trace: every tensor of a forward pass, in order, with its shape, its layout in memory and its values.

The layer itself runs, with a tap on it that keeps references and nothing else, so a traced forward costs what the
forward costs. Numbers about the values are computed when they are asked for. The kernels overwrite scores by weights;
where such a tensor is looked at, the forward is repeated once with copies.

Letters: see mha_core.lenses.steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.errors import MhaError
from mha_core.experiment import Given, give, precision
from mha_core.kernels import Tap
from mha_core.lenses.steps import Setting, Shape, letters, wording

Memory = Literal["new", "view", "in place"]
OVERWRITTEN = ("scores", "masked", "weights")  # one may take the place of the one before


@dataclass(frozen=True)
class Step:
    """One tensor on the way.

    Attributes:
        name: as in the code: q_proj, scores, ...
        operation, pattern: what was done, as code and as an einops or einsum pattern.
        symbolic: its shape in letters. shape, strides: in elements.
        inputs: names of the steps it was made from.
        dtype: without "torch.".
        size_bytes: elements times bytes per element; a view takes no memory of its own.
        is_contiguous: whether the elements lie in memory in the order of the axes.
        memory: "new"; "view", the memory of an input seen otherwise; or "in place", an input overwritten.
        times: how often the step was done; the chunked kernel repeats some, and the first is shown.
    """

    name: str
    operation: str
    pattern: str
    symbolic: Shape
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    inputs: tuple[str, ...]
    dtype: str
    size_bytes: int
    is_contiguous: bool
    memory: Memory
    times: int = 1


@dataclass(frozen=True)
class Statistics:
    """The values of a tensor: moments and extremes of the finite ones, and how many are not finite.

    Of a mask, True counts as 1, so the mean is the share of pairs that may attend. Without a finite value all four
    numbers are NaN.
    """

    mean: float
    std: float
    minimum: float
    maximum: float
    nan_count: int
    inf_count: int


@dataclass(frozen=True)
class Failure:
    """Why a configuration cannot run.

    Attributes:
        step: what could not be made.
        operation: what was tried.
        torch_error: what torch says there; None where torch would not complain.
        error: the same mistake in our words, with choices that work.
    """

    step: str
    operation: str
    torch_error: str | None
    error: MhaError


@dataclass
class Recorder:
    """A tap that keeps what passes: the first tensor of each name, its state of writing, and how many came."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Note one tensor and give it back."""
        if name in self.tensors:
            self.times[name] += 1
        else:
            self.tensors[name], self.versions[name], self.times[name] = tensor, tensor._version, 1
        return tensor

    def was_overwritten(self, name: str) -> bool:
        """Whether a later step took the place of a tensor."""
        return self.tensors[name]._version != self.versions[name]


@dataclass(frozen=True, eq=False)
class Trace:
    """The steps of one forward pass, as far as it goes.

    Attributes:
        letters: the value of every letter of the symbolic shapes.
        failure: why it stops; None when it reached the output.
    """

    steps: tuple[Step, ...]
    letters: Mapping[str, int]
    recorder: Recorder
    experiment: Experiment | None = None
    failure: Failure | None = None

    def step(self, name: str) -> Step:
        """Give a step by its name."""
        return next(step for step in self.steps if step.name == name)

    def values(self, name: str) -> Tensor | None:
        """Give the tensor of a step, of the shape the step says; None where only shapes were followed."""
        if self.recorder.was_overwritten(name):
            return self._copies[name]
        tensor = self.recorder.tensors[name]
        return None if tensor.is_meta else tensor

    def statistics(self, name: str) -> Statistics | None:
        """Describe the values of a step; None where only shapes were followed."""
        values = self.values(name)
        return None if values is None else describe(values)

    @cached_property
    def _copies(self) -> dict[str, Tensor]:
        """Repeat the forward and copy what it overwrites; the same experiment gives the same numbers."""
        assert self.experiment is not None, "only a whole run overwrites"
        copies: dict[str, Tensor] = {}

        def copy(name: str, tensor: Tensor) -> Tensor:
            if name in OVERWRITTEN and name not in copies:
                copies[name] = tensor.clone()
            return tensor

        forward(self.experiment, give(self.experiment), copy)
        return copies


def describe(values: Tensor) -> Statistics:
    """Describe the values of a tensor."""
    numbers = values.detach()
    numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
    finite = torch.isfinite(numbers)
    nan_count = int(torch.isnan(numbers).sum())
    inf_count = numbers.numel() - int(finite.sum()) - nan_count
    kept = numbers if nan_count + inf_count == 0 else numbers[finite]
    if not kept.numel():
        return Statistics(*(torch.nan,) * 4, nan_count, inf_count)
    std, mean = torch.std_mean(kept, correction=0)
    low, high = torch.aminmax(kept)
    return Statistics(mean.item(), std.item(), low.item(), high.item(), nan_count, inf_count)


@torch.no_grad()
def forward(experiment: Experiment, given: Given, tap: Tap) -> Tensor:
    """Run the layer of an experiment with a tap on it. Returns the output (B, Sq, E)."""
    inputs, layer = given.inputs, given.layer
    tap("query", inputs.query)
    if inputs.key is not inputs.query:
        tap("key", inputs.key)
    if inputs.value is not inputs.key:
        tap("value", inputs.value)
    if given.mask is not None:
        tap("mask", given.mask)
    layer.tap = tap
    with precision(experiment):
        output: Tensor = layer(inputs.query, inputs.key, inputs.value, given.mask)[0]
    return output


def trace(experiment: Experiment) -> Trace:
    """Trace the forward pass of an experiment.

    Raises:
        MhaError: it cannot run; `mha_core.lenses.broken_trace.trace_fields` follows it up to there.
    """
    given, recorder = give(experiment), Recorder()
    forward(experiment, given, recorder)
    setting = Setting.of(asdict(experiment.attention), given.sizes.is_cross)
    values = letters(experiment.attention, given.sizes.batch, given.sizes.q_len, given.sizes.k_len)
    return Trace(tuple(read_steps(recorder, setting)), values, recorder, experiment)


def read_steps(recorder: Recorder, setting: Setting) -> Iterator[Step]:
    """Join what was recorded with its words, in the order of the forward pass."""
    done: set[str] = set()
    for name, tensor in recorder.tensors.items():
        words = wording(name, setting)
        inputs = tuple(there[0] for names in words.inputs if (there := [n for n in names if n in done]))
        done.add(name)
        yield Step(
            name,
            words.operation,
            words.pattern,
            words.symbolic or _mask_symbols(tensor, setting),
            tuple(tensor.shape),
            tensor.stride(),
            inputs,
            str(tensor.dtype).removeprefix("torch."),
            tensor.numel() * tensor.itemsize,
            tensor.is_contiguous(),
            _memory(recorder, name, inputs),
            recorder.times[name],
        )


def _mask_symbols(mask: Tensor, setting: Setting) -> Shape:
    axes = ("B", "H", setting.q_len, setting.k_len)[4 - mask.ndim :]
    return tuple("1" if size == 1 else axis for axis, size in zip(axes, mask.shape, strict=True))


def _memory(recorder: Recorder, name: str, inputs: Iterable[str]) -> Memory:
    tensor = recorder.tensors[name]
    for source in inputs:
        other = recorder.tensors[source]
        if tensor.untyped_storage()._cdata == other.untyped_storage()._cdata:
            return "in place" if recorder.was_overwritten(source) and name in OVERWRITTEN else "view"
    return "new"
