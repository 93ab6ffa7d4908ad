"""The attention computations of a trace: which tensors were queries, keys, values, scores and weights, and where.

Found from what was done, not from names: a softmax whose input goes back to a product of two activations, and whose
output goes on to a product with a third; or a call of scaled_dot_product_attention. Axes are told apart by the values'
product: the axis of the weights that it sums over holds the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mha_core.doctor.causes.hiding import Masking, covered
from mha_core.doctor.report import Place
from mha_core.doctor.traces.alignment import Aligned, align
from mha_core.doctor.traces.backwards import Back, Factors, Walk, overall
from mha_core.doctor.traces.forwards import Softmax, Use, softmaxes, use
from mha_core.doctor.traces.fused import fused
from mha_core.doctor.traces.tracing import Step, Trace

Numbers = tuple[tuple[float, Place | None], ...]


@dataclass(frozen=True, eq=False)
class Core:
    """One attention computation.

    Attributes:
        q, k, v: operands of the products, (..., Sq, D), (..., Sk, D), (..., Sk, Dv), oriented so.
        scores: what softmax got, masked and scaled, (..., Sq, Sk); recomputed for scaled_dot_product_attention.
        weights: what softmax gave; used_weights: what multiplied the values. Both (..., Sq, Sk).
        dim: the axis softmax ran over, negative, in this orientation.
        factor: all scalars between the projections and the scores multiplied; None where one is learned, or where
            the scores are not the product times it.
        factors: each of them with its line, "divided by 8" as 0.125.
        fill: the value at hidden positions, the weakest where there are several; None without a mask.
        bias: what was added to the scores and hides nothing.
        kind: softmax written out, or the fused call.
        masks: how keys were hidden, in order. hidden: (..., Sq, Sk), True where any of them hides.
        double: the step of a second softmax over the weights.
        q_source, k_source, v_source: the tensors given to the products, with the index of the step that read them.
        product_step, softmax_step, values_step: the three steps; the same one for the fused call.
        walk, use, aligned: the ways before and after softmax, and how axes were told apart; None for the fused call.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    used_weights: Tensor
    dim: int
    factor: float | None
    factors: Numbers
    fill: float | None
    bias: Tensor | None
    scores_place: Place | None
    softmax_place: Place | None
    values_place: Place | None
    mask_place: Place | None
    kind: Literal["softmax", "sdpa"]
    masks: tuple[Masking, ...] = ()
    hidden: Tensor | None = None
    double: Step | None = None
    q_source: tuple[Tensor, int] | None = None
    k_source: tuple[Tensor, int] | None = None
    v_source: tuple[Tensor, int] | None = None
    softmax_step: Step | None = None
    values_step: Step | None = None
    product_step: Step | None = None
    walk: Walk | None = None
    use: Use | None = None
    aligned: Aligned | None = None


def cores(trace: Trace) -> tuple[Core, ...]:
    """Find every attention computation, in the order of the trace."""
    found: list[tuple[int, Core]] = []
    pairs = [(softmax, way) for softmax in softmaxes(trace) if (way := _way(trace, softmax)) is not None]
    back = Back(trace, {way.product.step.index for _, way in pairs})
    for softmax, way in pairs:
        try:
            core = _core(back, softmax, way)
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError, StopIteration):
            core = None  # a computation that cannot be read says nothing; it is not an error of the module
        if core is not None:
            found.append((softmax.step.index, core))
    for step in trace.steps:
        if step.name == "scaled_dot_product_attention":
            try:
                found.append((step.index, _fused_core(back, step)))
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
                continue
    return tuple(core for _, core in sorted(found, key=lambda pair: pair[0]))


def _way(trace: Trace, softmax: Softmax) -> Use | None:
    try:
        return use(trace, softmax)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None


def _core(back: Back, softmax: Softmax, way: Use) -> Core | None:
    trace = back.trace
    walk = back.scores(softmax.scores, softmax.scores_index)
    if walk.product is None:
        return None
    aligned = align(trace, softmax, walk, way)
    step = walk.product.step
    sources = _operands(trace, step)[:: -1 if aligned.swapped else 1]
    before: Factors = []
    for tensor, index in sources:
        before += back.projection(tensor, index)[0]
    factors = [*before, *walk.factors]
    factor = overall(factors)
    if not walk.smooth and not _agrees(aligned, overall(walk.factors), walk.shifted):
        factor = None
    masks = tuple(mask for _, mask in walk.masks)
    weakest = _weakest(masks)
    values = _operands(trace, way.product.step)[1 if way.weights_left else 0]
    return Core(
        q=aligned.q,
        k=aligned.k,
        v=aligned.v,
        scores=aligned.scores,
        weights=aligned.weights,
        used_weights=aligned.used,
        dim=aligned.dim,
        factor=factor,
        factors=tuple((value, place) for value, place in factors if value is not None),
        fill=None if weakest is None else weakest.fill,
        bias=aligned.bias,
        scores_place=step.place,
        softmax_place=softmax.step.place,
        values_place=way.product.step.place,
        mask_place=None if weakest is None else weakest.place,
        kind="softmax",
        masks=masks,
        hidden=aligned.hidden,
        double=next((s for s, _, _ in way.path if s.name == "softmax"), None),
        q_source=sources[0],
        k_source=sources[1],
        v_source=values,
        softmax_step=softmax.step,
        values_step=way.product.step,
        product_step=step,
        walk=walk,
        use=way,
        aligned=aligned,
    )


def _operands(trace: Trace, step: Step) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
    if step.name == "sum":
        made = trace.made_before(step.inputs[0], step.index)
        assert made is not None
        return (made.inputs[0], made.index), (made.inputs[1], made.index)
    first, second = step.inputs[-2:] if step.name in ("baddbmm", "baddbmm_", "addmm") else step.inputs[:2]
    return (first, step.index), (second, step.index)


def _weakest(masks: tuple[Masking, ...]) -> Masking | None:
    known = [m for m in masks if m.fill is not None and not math.isnan(m.fill) and not covered(masks, m)]
    return max(known, key=lambda mask: mask.fill or 0.0, default=None)


def _agrees(aligned: Aligned, factor: float | None, shifted: bool) -> bool:
    """Whether the visible scores are the product times the factor, plus the bias."""
    if factor is None:
        return False
    with torch.no_grad():
        expected = (aligned.q.double() @ aligned.k.double().transpose(-2, -1)) * factor
        if aligned.bias is not None:
            expected = expected + aligned.bias.double()
        got = aligned.scores.double()
        if expected.shape != got.shape:
            return True  # nothing to compare; the scalars stand
        visible = got.isfinite() & expected.isfinite()
        if aligned.hidden is not None:
            visible &= ~aligned.hidden.expand(got.shape)
        if not bool(visible.any()):
            return True
        precise = aligned.scores.dtype in (torch.float32, torch.float64) and aligned.q.dtype == aligned.scores.dtype
        size = float(expected[visible].abs().max())
        difference = (got - expected).masked_fill(~visible, math.nan)
        if shifted:
            difference = difference - difference.nanmean(-1, keepdim=True)
        return float(difference[visible].abs().max()) <= (1e-3 if precise else 5e-2) * max(size, 1e-6)


def _fused_core(back: Back, step: Step) -> Core:
    parts = fused(back.trace, step)
    before: Factors = []
    for source in step.inputs[:2]:
        before += back.projection(source, step.index)[0]
    factors = [*before, (parts.scale, step.place)]
    core = Core(
        q=parts.q,
        k=parts.k,
        v=parts.v,
        scores=parts.scores,
        weights=parts.weights,
        used_weights=parts.weights,
        dim=-1,
        factor=overall(factors),
        factors=tuple((value, place) for value, place in factors if value is not None),
        fill=parts.masks[0].fill if parts.masks else None,
        bias=parts.bias,
        scores_place=step.place,
        softmax_place=step.place,
        values_place=step.place,
        mask_place=parts.masks[0].place if parts.masks else None,
        kind="sdpa",
        masks=parts.masks,
        hidden=parts.hidden,
    )
    sources = [(source, step.index) for source in step.inputs[:3]]
    return replace(
        core,
        q_source=sources[0],
        k_source=sources[1],
        v_source=sources[2],
        softmax_step=step,
        values_step=step,
        product_step=step,
    )
