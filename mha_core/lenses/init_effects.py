"""What one choice of initialisation does: which matrices a scheme fills, the 1/√D scale, Xavier on a packed matrix.

All compare ways on the same input and seed. The gradient of the last two is that of a loss whose gradient at the
context is a random direction of norm 1, so that numbers compare across widths.

Letters: B batch, Sq queries, Sk keys, E embed_dim, H heads, D head_dim.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.config import MAX_HEADS
from mha_core.experiment import Given, give
from mha_core.init_schemes import TARGETS, InitSpec, generator_for
from mha_core.kernels import attention_scores, attention_weights, share_heads
from mha_core.lenses.grad_schemes import SchemeRow, scheme_row
from mha_core.lenses.gradients import backward
from mha_core.lenses.head_stats import relative_entropy, row_entropy
from mha_core.lenses.verdicts import healthy_experiment
from mha_core.trained_layer import fresh_layer, with_init


@dataclass(frozen=True)
class Spread:
    """How far scores spread, and what that does.

    Attributes:
        score_variance: variance of the scores before the mask.
        relative_entropy: entropy of the weights over ln(allowed keys), mean over rows: 1 uniform, 0 one-hot.
        score_gradient: norm of the gradient of the scores.
        q_gradient: norm of the gradient of q.
    """

    score_variance: float
    relative_entropy: float
    score_gradient: float
    q_gradient: float


@dataclass(frozen=True)
class ScalePoint:
    """One head width, with the scale 1/√D and without any."""

    head_dim: int
    num_heads: int
    scaled: Spread
    unscaled: Spread


@torch.enable_grad()
def spread(given: Given, scale: float | None = None) -> Spread:
    """Measure the spread of the scores of a layer on its input.

    Args:
        scale: on q kᵀ instead of the layer's own.
    """
    config, inputs = given.layer.config, given.inputs
    with torch.no_grad():
        q, k, v = given.layer.project(inputs.query, inputs.key, inputs.value)
    q = q.double().requires_grad_()
    k, v = (share_heads(tensor.double(), config.num_heads) for tensor in (k, v))
    scores = attention_scores(q, k, config.softmax_scale if scale is None else scale)
    scores.retain_grad()
    weights = attention_weights(scores, given.mask, given.layer.fill)
    context = torch.matmul(weights, v)
    direction = torch.randn(context.shape, generator=generator_for(0, "direction"), dtype=context.dtype)
    torch.autograd.backward(context, direction / torch.linalg.vector_norm(direction))
    assert q.grad is not None
    assert scores.grad is not None
    return Spread(
        scores.detach().var(correction=0).item(),
        _relative_entropy(weights.detach(), given.mask),
        float(torch.linalg.vector_norm(scores.grad)),
        float(torch.linalg.vector_norm(q.grad)),
    )


def _relative_entropy(weights: Tensor, mask: Tensor | None) -> float:
    """Mean over the rows with at least two allowed keys; NaN where there is none."""
    keys = torch.full((), float(weights.shape[-1])) if mask is None else mask.sum(-1).double()
    rows = keys.expand(weights.shape[:-1])
    return float(relative_entropy(row_entropy(weights), rows)[rows > 1].mean())


def scale_against_width(experiment: Experiment) -> tuple[ScalePoint, ...]:
    """Cut the same channels into ever fewer heads, and compare the scale 1/√D with none.

    Returns:
        One point for every head width D, a power of two, that divides H·D and fits the rules, or the layer's own
        where there is none; same weights throughout.
    """
    config = experiment.attention
    joined = config.joined_dim
    widths = [2**power for power in range(joined.bit_length()) if joined % 2**power == 0]
    widths = [width for width in widths if joined // width <= MAX_HEADS and (not config.rope_theta or width % 2 == 0)]
    points = []
    for head_dim in widths or [config.head_dim]:
        heads, size = joined // head_dim, None if config.head_size is None else head_dim
        cut = replace(config, num_heads=heads, num_kv_heads=None, head_size=size, scale=None, kernel="explicit")
        given = give(replace(fresh_layer(experiment), attention=cut))
        points.append(ScalePoint(head_dim, heads, spread(given, head_dim**-0.5), spread(given, 1.0)))
    return tuple(points)


@dataclass(frozen=True)
class PackedRow:
    """Xavier on q, k, v drawn one way.

    Attributes:
        way: "per block" or "packed".
        measured_std: of the weights of q. theory_std: √(2 / (fan_in + fan_out)) of what Xavier saw.
        spread: of the scores that follow.
    """

    way: str
    measured_std: float
    theory_std: float
    spread: Spread


def packed_against_blocks(experiment: Experiment) -> tuple[PackedRow, PackedRow]:
    """Draw the fused q, k, v matrix by Xavier per block, and as the one matrix it is."""
    config = replace(experiment.attention, projection="fused", kdim=None, vdim=None, kernel="explicit")
    rows = config.num_heads * config.head_dim
    packed_rows = rows + 2 * config.kv_heads * config.head_dim
    found = []
    for way, is_packed, fan_out in (("per block", False, rows), ("packed", True, packed_rows)):
        init = InitSpec(
            experiment.init.scheme if "xavier" in experiment.init.scheme else "xavier_uniform", packed=is_packed
        )
        given = give(replace(fresh_layer(experiment), attention=config, init=init))
        measured = given.layer.weights().q.detach().double().std(correction=0).item()
        found.append(PackedRow(way, measured, math.sqrt(2 / (config.embed_dim + fan_out)), spread(given)))
    return found[0], found[1]


@dataclass(frozen=True)
class TargetRow:
    """A scheme on one subset of the four matrices, the others Xavier-uniform."""

    targets: tuple[str, ...]
    result: SchemeRow


def target_scheme(experiment: Experiment) -> str:
    """Give the scheme whose targets are compared: the chosen one, or zeros where all matrices have that one anyway."""
    init = experiment.init
    return "zeros" if init.scheme == InitSpec().scheme and init.gain == 1 else init.scheme


def compare_targets(experiment: Experiment, loss: str = "sum") -> tuple[TargetRow, ...]:
    """Put the experiment's scheme on every subset of q, k, v and out, one backward pass each.

    Raises:
        MhaError: as `mha_core.lenses.gradients.backward`.
    """
    reference = backward(healthy_experiment(experiment), loss)
    init = replace(experiment.init, scheme=target_scheme(experiment))
    subsets = itertools.chain.from_iterable(itertools.combinations(TARGETS, size) for size in range(len(TARGETS) + 1))
    return tuple(
        TargetRow(targets, scheme_row(backward(with_init(experiment, replace(init, targets=targets)), loss), reference))
        for targets in subsets
    )
