"""What the rows of attention weights say about how they were made.

Axes: B batch, H heads, Sq queries, Sk keys. Weights lie in (..., Sq, Sk).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.tracing import Step, Trace
from mha_core.doctor.traces.walk import drops, makers

SUMS = 2e-3  # how far a sum of float32 weights may be from 1; many keys and half precision included
HIDDEN = -1e4
MOST_SINKS = 4
_MIXING = ("linear", "conv1d", "conv2d", "einsum", "matmul", "bmm", "tensordot", "batch_norm", "layer_norm")


def row_error(weights: Tensor, rows: Tensor | None = None) -> float:
    """Give the largest distance of a row sum from 1; inf where a weight is not a number. rows: bool (..., Sq)."""
    sums = weights.detach().double().sum(-1)
    if rows is not None and rows.shape == sums.shape:
        sums = sums[rows]
    if not sums.numel():
        return 0.0
    error = float((sums - 1).abs().max())
    return error if math.isfinite(error) else math.inf


def visible_rows(core: Core) -> Tensor:
    """Tell which rows have a key they may attend to. (..., Sq) bool."""
    return (core.scores.detach() > HIDDEN).any(-1)


def other_axis(weights: Tensor) -> str:
    """Name the axis, other than the keys, over which the weights sum to 1; "" where there is none."""
    for axis, name in ((-2, "queries"), (-3, "heads"), (-4, "batch")):
        if weights.dim() >= -axis and weights.shape[axis] > 1:
            sums = weights.detach().double().sum(axis)
            if float((sums - 1).abs().max()) < SUMS:
                return name
    return ""


def all_one(weights: Tensor) -> bool:
    """Whether every weight is exactly 1 though there are several keys: softmax over an axis of size 1."""
    return weights.shape[-1] > 1 and bool((weights.detach() == 1).all())


def path_of(core: Core) -> tuple[Step, ...]:
    """Give the steps from the softmax to the product with the values, in order."""
    return () if core.use is None else tuple(step for step, _, _ in core.use.path)


def weights_without_dropout(core: Core) -> Tensor:
    """Give the weights that multiply the values, or those before dropout where dropout was drawn."""
    return core.weights if any(map(drops, path_of(core))) else core.used_weights


def mixing(trace: Trace, core: Core) -> str:
    """Say what legitimately changes row sums after the softmax: a mix of heads, a learned gate, another softmax."""
    for step, given, _ in () if core.use is None else core.use.path:
        if step.name in _MIXING:
            return f"the weights are mixed by {step.name} after the softmax"
        if step.name not in ("mul", "sub", "add", "mul_", "sub_", "add_"):
            continue
        for other in (one for one in step.inputs if one is not given and one.is_floating_point()):
            made = [maker.name for maker in makers(trace, other)]
            if other.shape[-2:] == given.shape[-2:] and "softmax" in made:
                return "two attention maps are combined after the softmax"
            if other.requires_grad:
                return "the weights are multiplied by a learned gate after the softmax"
    return ""


def has_extra_key(core: Core) -> bool:
    """Whether the softmax runs over a few more keys than the values have: a learned sink."""
    return 0 < core.weights.shape[-1] - core.used_weights.shape[-1] <= MOST_SINKS


def is_same_map(returned: Tensor, used: Tensor, batch: int) -> bool | None:
    """Whether returned weights (B, H, Sq, Sk) or (B, Sq, Sk) are the used ones (..., Sq, Sk); None: incomparable."""
    returned, used = returned.detach().double(), used.detach().double()
    if returned.shape[-2:] != used.shape[-2:]:
        return None
    maps = used.flatten(0, -3) if used.dim() > 2 else used[None]
    if maps.shape[0] % batch:
        return None
    heads = maps.shape[0] // batch
    rest = maps.shape[1:]
    orders = [maps.reshape(batch, heads, *rest), maps.reshape(heads, batch, *rest).transpose(0, 1)]
    if returned.dim() == 4 and returned.shape[1] == heads:
        return any(_equal(returned, order) for order in orders)
    mean = returned.mean(1) if returned.dim() == 4 else returned
    if returned.dim() == 4 and returned.shape[1] != 1:
        return None
    choices = [choice for order in orders for choice in (order.mean(1), order.amax(1), *order.unbind(1))]
    return any(_equal(mean, choice) for choice in choices)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
