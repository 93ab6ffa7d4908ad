"""The gradient through many layers: its norm at every depth, and where it vanishes or explodes as the gain grows.

Attention layers of the experiment are stacked, each with weights of its own, with or without residual connections,
layer normalisation and a smaller output matrix. The loss is the product of the output with a random direction of norm
1, so that the gradient enters the stack with norm 1 and every norm below is a factor. All in float64: the picture is to
show the mathematics, not the overflow. Self-attention only: keys and values are what the layer before gave.

Axes: B batch, S sequence, E embed_dim, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.budget import budget_bytes, run_bytes, spell_bytes
from mha_core.choices import Experiment
from mha_core.config import require_int
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.init_schemes import MAX_SEED, generator_for, initial_weights
from mha_core.masks import MaskSizes, build_mask
from mha_core.sources.inputs import Sizes, embed, measure
from mha_core.trained_layer import fresh_layer

Norm = Literal["none", "pre", "post"]
Region = Literal["dead", "vanishing", "healthy", "exploding"]
MAX_LAYERS = 64
VANISHING, EXPLODING = 1e-3, 1e3  # of the gradient's norm: a step of usual size moves nothing, or leaves every minimum


@dataclass(frozen=True)
class Arrangement:
    """How layers are joined: residual connections, layer normalisation before or after, and a smaller output matrix.

    Attributes:
        scaled: the output matrix is divided by √(2L) (Radford et al. 2019, GPT-2, section 2.3: by √N for N residual
            layers, two in a block).
    """

    residual: bool = False
    norm: Norm = "none"
    scaled: bool = False

    @property
    def name(self) -> str:
        """How it reads."""
        words = ["residual"] if self.residual else []
        words += [] if self.norm == "none" else [f"{self.norm}-norm"]
        return " + ".join((words or ["plain"]) + (["out/√(2L)"] if self.scaled else []))


ARRANGEMENTS: dict[str, Arrangement] = {
    arrangement.name: arrangement
    for arrangement in itertools.starmap(
        Arrangement, itertools.product((False, True), ("none", "pre", "post"), (False, True))
    )
}


@dataclass(frozen=True)
class LayerGradient:
    """One layer of a stack, counted from the input.

    Attributes:
        activation_rms: root mean square of the layer's input.
        input_gradient: norm of the loss's gradient at the layer's input; it is 1 at the output of the last layer.
        weight_gradient: norm of the gradient of the layer's four matrices and biases.
    """

    layer: int
    activation_rms: float
    input_gradient: float
    weight_gradient: float


def region(ratio: float) -> Region:
    """Name what became of a gradient that entered with norm 1; NaN is what overflow leaves behind."""
    if ratio == 0:
        return "dead"
    if math.isnan(ratio) or ratio > EXPLODING:
        return "exploding"
    return "vanishing" if ratio < VANISHING else "healthy"


def stack_bytes(experiment: Experiment, layers: int) -> int:
    """Estimate the bytes of a stack with what its backward pass keeps."""
    config, sizes = experiment.attention, measure(experiment.source)
    return layers * run_bytes(config, sizes.batch, sizes.q_len, sizes.q_len, 8)


def _check(experiment: Experiment, layers: int) -> Sizes:
    require_int("layers", layers, 1, MAX_LAYERS)
    need, limit = stack_bytes(experiment, layers), budget_bytes()
    if need > limit:
        fewer = max(1, layers * limit // need)
        problem = (
            f"{layers} layers of width {experiment.attention.embed_dim} need {need:,} bytes ({spell_bytes(need)}), "
            f"more than the budget of {spell_bytes(limit)}; {fewer} layers fit, or a smaller width"
        )
        tied: dict[str, FieldValue] = {} if experiment.attention.head_size is None else {"head_size": None}
        narrower = Suggestion.of(embed_dim=16 * experiment.attention.num_heads, **tied)
        raise MhaError("layers", layers, f"at most {fewer} here", [narrower], problem=problem)
    return measure(experiment.source)


def _layer(experiment: Experiment, index: int, layers: int, arrangement: Arrangement) -> MultiHeadAttention:
    """Build one layer; the first one is the experiment's own."""
    config = replace(experiment.attention, kdim=None, vdim=None, dropout=0.0, kernel="explicit")
    seed = generator_for(experiment.seed, "layer", str(index)).initial_seed() % MAX_SEED if index else experiment.seed
    weights = initial_weights(config, experiment.init, seed).map(Tensor.double)
    if arrangement.scaled:
        weights = replace(weights, out=weights.out / math.sqrt(2 * layers))
    layer = MultiHeadAttention.from_config(config, weights)
    layer.fill = experiment.mask.fill
    return layer


def _through(layer: MultiHeadAttention, x: Tensor, mask: Tensor | None, arrangement: Arrangement) -> Tensor:
    """Pass one layer with what surrounds it, (B, S, E) -> (B, S, E)."""
    inside = F.layer_norm(x, x.shape[-1:]) if arrangement.norm == "pre" else x
    output = layer(inside, mask=mask, need_weights=False)[0]
    output = x + output if arrangement.residual else output
    return F.layer_norm(output, output.shape[-1:]) if arrangement.norm == "post" else output


@torch.enable_grad()
def profile(experiment: Experiment, layers: int, arrangement: Arrangement) -> tuple[LayerGradient, ...]:
    """Follow one backward pass through a stack.

    Args:
        experiment: its input, layer, mask, initial values and seed; cross-attention becomes self-attention.
        layers: L, 1 to 64.

    Raises:
        MhaError: the stack does not fit in memory, or the custom mask does not fit.
    """
    sizes = _check(experiment, layers)
    config = replace(experiment.attention, kdim=None, vdim=None)
    source = embed(experiment.source, sizes, config, experiment.positions, experiment.seed).query
    mask = build_mask(experiment.mask, _self_sizes(sizes))
    inputs = [source.double().requires_grad_()]
    squares = [0.0] * layers
    for index in range(layers):
        layer = _layer(experiment, index, layers, arrangement)
        for parameter in layer.parameters():
            let_go = partial(_take, squares, index)
            parameter.register_post_accumulate_grad_hook(let_go)  # type: ignore[no-untyped-call]
        inputs.append(_through(layer, inputs[-1], mask, arrangement))
        inputs[-1].retain_grad()
    torch.autograd.backward(inputs[-1], _direction(inputs[-1], experiment.seed))
    return tuple(
        LayerGradient(index, x.detach().square().mean().sqrt().item(), _norm_of(x), math.sqrt(square))
        for index, (x, square) in enumerate(zip(inputs[:-1], squares, strict=True))
    )


def _self_sizes(sizes: Sizes) -> MaskSizes:
    return MaskSizes(sizes.batch, sizes.q_len, sizes.q_len, torch.tensor(sizes.q_tokens.lengths))


def _direction(output: Tensor, seed: int) -> Tensor:
    """A random direction of norm 1: the gradient of the loss at the output."""
    drawn = torch.randn(output.shape, generator=generator_for(seed, "direction"), dtype=output.dtype)
    norm: Tensor = torch.linalg.vector_norm(drawn)
    return drawn / norm


def _norm_of(x: Tensor) -> float:
    assert x.grad is not None, "every input of a layer keeps its gradient"
    return float(torch.linalg.vector_norm(x.grad))


def _take(squares: list[float], index: int, parameter: Tensor) -> None:
    """Add a gradient to its layer's norm and let go of it: those of all layers would not fit."""
    assert parameter.grad is not None, "called after the gradient is there"
    squares[index] += parameter.grad.square().sum().item()
    parameter.grad = None


@dataclass(frozen=True)
class PhaseCell:
    """One stack of the phase diagram.

    Attributes:
        gain: factor on the weights. layers, embed_dim: L and E.
        ratio: norm of the gradient at the input, of one that entered at the output with norm 1.
    """

    gain: float
    layers: int
    embed_dim: int
    ratio: float

    @property
    def region(self) -> Region:
        """What became of the gradient."""
        return region(self.ratio)

    @property
    def log10_ratio(self) -> float:
        """Powers of ten; minus infinity where nothing arrived, plus infinity where it overflowed."""
        if math.isnan(self.ratio):
            return math.inf
        return math.log10(self.ratio) if self.ratio > 0 else -math.inf


@dataclass(frozen=True)
class PhasePlan:
    """Which stacks a phase diagram is made of: every gain with every depth and width."""

    experiment: Experiment
    gains: tuple[float, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    arrangement: Arrangement = Arrangement()

    @property
    def cells(self) -> tuple[tuple[float, int, int], ...]:
        """Gain, layers and width of every stack, the quick ones first."""
        return tuple((gain, layers, width) for width in self.widths for layers in self.depths for gain in self.gains)

    @property
    def total(self) -> int:
        """Number of stacks."""
        return len(self.cells)


def phase_cell(plan: PhasePlan, gain: float, layers: int, width: int) -> PhaseCell:
    """Compute one stack of a phase diagram; a plain function of plain values, for executors of any kind.

    Raises:
        MhaError: the width does not fit the heads, or the stack the memory.
    """
    experiment = replace(
        fresh_layer(plan.experiment),
        attention=replace(plan.experiment.attention, embed_dim=width, kdim=None, vdim=None),
        init=replace(plan.experiment.init, gain=gain),
    )
    return PhaseCell(gain, layers, width, profile(experiment, layers, plan.arrangement)[0].input_gradient)


def sweep(plan: PhasePlan, executor: Executor | None = None) -> Generator[PhaseCell, None, None]:
    """Compute a phase diagram cell by cell; whoever stops asking stops the work.

    Args:
        executor: where the cells are computed; None computes each here, when it is asked for.

    Returns:
        Cells in the order they are done.
    """
    if executor is None:
        yield from itertools.starmap(lambda *cell: phase_cell(plan, *cell), plan.cells)
        return
    futures: Sequence[Future[PhaseCell]] = [executor.submit(phase_cell, plan, *cell) for cell in plan.cells]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
