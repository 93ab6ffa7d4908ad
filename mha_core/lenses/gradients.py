"""One backward pass: how much gradient reaches every parameter, every head and every tensor between them.

The layer itself runs, with a tap on it that asks autograd to keep the gradients of what passes. Parameters are given in
the neutral form q, k, v, out and their biases, whatever the projection. What the numbers mean is said in verdicts.py.

Letters: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, E width, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.budget import budget_bytes, run_bytes, spell_bytes
from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.errors import MhaError, Suggestion
from mha_core.experiment import give, precision, prepare
from mha_core.layouts import AttentionWeights, unpack_qkv
from mha_core.lenses.grad_facts import Facts, facts_of
from mha_core.lenses.grad_losses import LOSSES, candidates_alike, check_loss, extra_numbers
from mha_core.sources.inputs import Sizes, smaller_inputs

Kind = Literal["weight", "bias", "tensor"]
PARAMETERS = ("q", "k", "v", "out", "q_bias", "k_bias", "v_bias", "out_bias")
TENSORS = ("q", "k", "v", "scores", "weights", "context", "output")
# What the kernel is given: after the split, and after the rotation where there is one.
TAPPED = {f"{name}_{step}": name for name in "qkv" for step in ("heads", "rotated")}
TAPPED |= {name: name for name in ("scores", "weights", "context", "output")}
NO_SCORES = "The fused kernel never shows scores or weights, so there is no gradient of them to look at."


@dataclass(frozen=True)
class Share:
    """The part of one head, or key/value head: norm, RMS and share of exact zeros of its gradient."""

    norm: float
    rms: float
    zeros: float
    value_norm: float


@dataclass(frozen=True)
class Flow:
    """The gradient of one parameter or tensor.

    Attributes:
        name: one of PARAMETERS or of TENSORS. kind: which of the two.
        norm: L2 norm. rms: root of the mean square. zeros: share of entries that are exactly 0.
        value_norm, value_std: L2 norm and standard deviation of the parameter or tensor itself.
        heads: the same for each head; key/value heads for k and v; none for the output and its bias.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    norm: float
    rms: float
    zeros: float
    value_norm: float
    value_std: float
    heads: tuple[Share, ...]

    @property
    def ratio(self) -> float | None:
        """Gradient norm over norm of the parameter or tensor; None where that is 0."""
        return self.norm / self.value_norm if self.value_norm else None

    @property
    def value_rms(self) -> float:
        """Root of the mean square of the parameter or tensor itself."""
        return self.value_norm / math.sqrt(math.prod(self.shape))


@dataclass(frozen=True, eq=False)
class Gradients:
    """What one backward pass gives.

    Attributes:
        loss: name in LOSSES. loss_value: what it was.
        parameters: in the order of PARAMETERS, those that are there.
        tensors: in the order of TENSORS; without scores and weights for the fused kernel.
        score_gradient: (B, H, Sq, Sk), before the mask: 0 at hidden keys; None for the fused kernel.
        mask: as in `mha_core.experiment.Run`.
        facts: what decides which factor of the chain rule is to blame.
        note: what cannot be looked at, and why.
    """

    experiment: Experiment
    sizes: Sizes
    loss: str
    loss_value: float
    parameters: tuple[Flow, ...]
    tensors: tuple[Flow, ...]
    score_gradient: Tensor | None
    mask: Tensor | None
    facts: Facts
    note: str | None

    @cached_property
    def parameter(self) -> Mapping[str, Flow]:
        """Parameters by name."""
        return {flow.name: flow for flow in self.parameters}

    @cached_property
    def tensor(self) -> Mapping[str, Flow]:
        """Tensors by name."""
        return {flow.name: flow for flow in self.tensors}


@dataclass
class Keeper:
    """A tap that keeps what passes and asks autograd for its gradient; chunks of queries are kept in order."""

    kept: dict[str, list[Tensor]] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Keep one tensor and give it back; a rotated tensor takes the place of the one before."""
        if name in TAPPED:
            tensor.retain_grad()
            place = TAPPED[name]
            if self.steps.get(place) != name:
                self.steps[place], self.kept[place] = name, []
            self.kept[place].append(tensor)
        return tensor

    def whole(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Give every tensor and its gradient, chunks joined along the queries, and let go of them."""
        joined = {}
        for name in [name for name in TENSORS if name in self.kept]:
            parts = self.kept.pop(name)
            gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
            joined[name] = (_join([part.detach() for part in parts]), _join(gradients))
        return joined


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def backward_bytes(experiment: Experiment, sizes: Sizes, loss: str) -> int:
    """Estimate the bytes of a backward pass: what a run keeps, as much again for gradients, and what autograd saves.

    Under a mask the filled scores are one more S x S matrix, with dropout the draws and the dropped weights, and the
    chunked kernel's parts are joined.
    """
    config, itemsize = experiment.attention, experiment.torch_dtype.itemsize
    run = run_bytes(config, sizes.batch, sizes.q_len, sizes.k_len, itemsize)
    more = 1 + 2 * bool(experiment.mask.kinds) + 4 * (config.dropout > 0) + 3 * (config.kernel == "chunked")
    matrix = sizes.batch * config.num_heads * sizes.q_len * sizes.k_len
    return 2 * run + more * matrix * itemsize + extra_numbers(sizes, experiment, loss) * max(itemsize, 4)


def check_backward(experiment: Experiment, loss: str) -> Sizes:
    """Find the sizes and refuse what cannot be done, before any tensor exists.

    Raises:
        MhaError: as `prepare`; the loss cannot be had; or the pass would take more memory than allowed.
    """
    sizes = prepare(experiment)
    check_loss(experiment, sizes, loss)
    need, limit = backward_bytes(experiment, sizes, loss), budget_bytes()
    if need > limit:
        shorter = smaller_inputs(experiment.source, sizes, 0.9 / math.sqrt(need / limit))
        matrix = (
            experiment.torch_dtype.itemsize * sizes.batch * experiment.attention.num_heads * sizes.q_len * sizes.k_len
        )
        problem = (
            f"a backward pass needs {need:,} bytes ({spell_bytes(need)}), more than the budget of "
            f"{spell_bytes(limit)}: it keeps several score matrices of {matrix:,} bytes each, and their gradients"
        )
        fitting = [suggestion for suggestion in shorter if _fits(experiment, suggestion, loss)]
        raise MhaError("q_len", need, f"at most {limit:,} bytes", fitting, problem=problem)
    return sizes


def _fits(experiment: Experiment, suggestion: Suggestion, loss: str) -> bool:
    try:
        smaller = Experiment.from_fields(experiment.to_fields() | dict(suggestion.changes))
        return backward_bytes(smaller, prepare(smaller), loss) <= budget_bytes()
    except MhaError:
        return False


@torch.enable_grad()
def backward(experiment: Experiment, loss: str = "sum") -> Gradients:
    """Run an experiment forward and backward once.

    Args:
        loss: a name in LOSSES.

    Raises:
        MhaError: as `check_backward`, or the custom mask does not fit the lengths.
    """
    check_backward(experiment, loss)
    given, keeper = give(experiment), Keeper()
    inputs, layer = given.inputs, given.layer
    layer.tap = keeper
    with precision(experiment):
        output = layer(inputs.query, inputs.key, inputs.value, given.mask, need_weights=False)[0]
    value = LOSSES[loss].value(experiment, given, output)
    value.backward()  # type: ignore[no-untyped-call]
    del output
    with torch.no_grad():
        kept = keeper.whole()
        values, gradients = layer.weights(), gradients_of(layer)
        return Gradients(
            experiment=experiment,
            sizes=given.sizes,
            loss=loss,
            loss_value=value.item(),
            parameters=_parameters(values, gradients, experiment.attention),
            tensors=tuple(_flow(name, "tensor", *pair, experiment.attention) for name, pair in kept.items()),
            score_gradient=kept["scores"][1] if "scores" in kept else None,
            mask=given.mask,
            facts=facts_of(experiment, given, kept, candidates_alike(experiment, given, loss)),
            note=None if "scores" in kept else NO_SCORES,
        )


def gradients_of(layer: MultiHeadAttention) -> AttentionWeights:
    """Give the gradients of a layer's parameters in the neutral form, whatever the projection."""

    def grad(parameter: Tensor | None) -> Tensor | None:
        return None if parameter is None else parameter.grad

    out, out_bias = layer.fc_out.weight.grad, grad(layer.fc_out.bias)
    assert out is not None, "backward has been done"
    if layer.config.projection == "fused":
        fused, bias = layer.qkv_proj.weight.grad, grad(layer.qkv_proj.bias)
        assert fused is not None, "backward has been done"
        return unpack_qkv(fused, bias, out, out_bias, layer.config, layer.config.qkv_layout)
    matrices = [projection.weight.grad for projection in (layer.wq, layer.wk, layer.wv)]
    q, k, v = (matrix for matrix in matrices if matrix is not None)
    biases = grad(layer.wq.bias), grad(layer.wk.bias), grad(layer.wv.bias)
    return AttentionWeights(q, k, v, out, *biases, out_bias)


def _parameters(values: AttentionWeights, gradients: AttentionWeights, config: AttentionConfig) -> tuple[Flow, ...]:
    found = []
    for name in PARAMETERS:
        value, gradient = getattr(values, name), getattr(gradients, name)
        if gradient is not None:
            found.append(_flow(name, "bias" if name.endswith("_bias") else "weight", value, gradient, config))
    return tuple(found)


def _flow(name: str, kind: Kind, value: Tensor, gradient: Tensor, config: AttentionConfig) -> Flow:
    norm, count = _norm(gradient), gradient.numel()
    spread = torch.std(value.float() if value.itemsize < 4 else value, correction=0).item()
    heads = [] if name in ("output", "out_bias") else list(_heads(name, kind, value, gradient, config))
    return Flow(
        name,
        kind,
        tuple(value.shape),
        norm,
        norm / math.sqrt(count),
        _zeros(gradient),
        _norm(value),
        spread,
        tuple(heads),
    )


def _heads(name: str, kind: Kind, value: Tensor, gradient: Tensor, config: AttentionConfig) -> list[Share]:
    """Cut both into heads: rows of q, k and v, columns of out, the second axis of a tensor."""
    if kind == "tensor":
        pairs = list(zip(value.unbind(1), gradient.unbind(1), strict=True))
    else:
        axis = 1 if name == "out" else 0
        cut = (torch.split(whole, config.head_dim, axis) for whole in (value, gradient))
        pairs = list(zip(*cut, strict=True))
    return [Share(n := _norm(g), n / math.sqrt(g.numel()), _zeros(g), _norm(v)) for v, g in pairs]


def _norm(tensor: Tensor) -> float:
    """Summed in float64: squares of half precision would overflow or vanish."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _zeros(tensor: Tensor) -> float:
    return 1.0 - torch.count_nonzero(tensor).item() / tensor.numel()
