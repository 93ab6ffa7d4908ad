"""The line a finding belongs to, where no named mistake gives one: of the softmax, the mask, a projection, a leak.

Only what a trace holds is told, so a line is one that ran. Axes: B batch, S tokens, Sq queries, Sk keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mha_core.doctor.probes.influence import NOISE, Look
from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.tracing import Step, Trace
from mha_core.doctor.traces.walk import makers

SOFTMAXES: tuple[str, ...] = ("softmax", "_softmax", "scaled_dot_product_attention", "multi_head_attention_forward")
SOFTMAXES += ("_native_multi_head_attention", "_transformer_encoder_layer_fwd", "exp")
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "tensordot", "linear")
MASKING = ("masked_fill", "masked_fill_", "where", "masked_scatter", "masked_scatter_", "index_fill")
PROJECTING = ("linear", "addmm", "matmul", "einsum", "bilinear", "conv1d", "conv2d")
REARRANGING = ("view", "reshape", "flatten", "unflatten", "view_as", "as_strided", "reshape_as")


def attention_line(look: Look) -> Place | None:
    """Find the line of the softmax of the first attention, else of the last that looks like one, else of a product."""
    found = [core.softmax_place for core in look.cores[:1]]
    return next((place for place in found if place), None) or _last(look.trace, SOFTMAXES) or _last_product(look.trace)


def mask_line(look: Look) -> Place | None:
    """Find the line that hides keys, else that of the attention that should."""
    known = next((core.mask_place for core in look.cores if core.mask_place), None)
    return known or _last(look.trace, MASKING) or attention_line(look)


def _last(trace: Trace, names: Sequence[str]) -> Place | None:
    return next((step.place for step in reversed(trace.steps) if step.name in names and step.place), None)


def activation_products(trace: Trace) -> list[Step]:
    """List the products of two tensors that are no parameters, in order."""
    found = []
    for step in trace.steps:
        given = [tensor for tensor in step.inputs if tensor.is_floating_point() and tensor.dim() > 1]
        learned = any(isinstance(tensor, nn.Parameter) for tensor in given)
        if step.name in PRODUCTS and step.name != "linear" and len(given) > 1 and not learned:
            found.append(step)
    return found


def _last_product(trace: Trace) -> Place | None:
    places = [step.place for step in activation_products(trace) if step.place]
    return places[-1] if places else _last(trace, PRODUCTS)


def projection_line(look: Look, side: str) -> Place | None:
    """Find the line that projects the "query", "key" or "value" of the first attention."""
    for core in look.cores[:1]:
        source = _source(core, side)
        for step in makers(look.trace, source[0]) if source is not None else ():
            learned = any(isinstance(tensor, nn.Parameter) for tensor in step.inputs)
            if step.name in PROJECTING and learned and step.place:
                return step.place
    return attention_line(look)


def _source(core: Core, side: str) -> tuple[Tensor, int] | None:
    return {"query": core.q_source, "key": core.k_source, "value": core.v_source}[side]


def parameter_line(trace: Trace, parameter: Tensor) -> Place | None:
    """Find the line that uses a parameter."""
    return next((step.place for step in trace.used_by(parameter) if step.place), None)


def _pairs(before: Trace, after: Trace) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Give what each step made in two passes, as long as the passes do the same."""
    for mine, other in zip(before.steps, after.steps, strict=False):
        if mine.name != other.name or len(mine.outputs) != len(other.outputs):
            return
        for one, two in zip(mine.outputs, other.outputs, strict=True):
            if one.shape != two.shape:
                return
            if one.is_floating_point():
                yield mine, _held(before, one, mine), _held(after, two, other)


def _held(trace: Trace, tensor: Tensor, step: Step) -> Tensor:
    return trace.value(tensor, step.index + 1).detach().nan_to_num(neginf=-1e30, posinf=1e30)


def _token_axes(tensor: Tensor, length: int) -> list[int]:
    return [axis for axis, size in enumerate(tensor.shape) if size == length]


def _differ(one: Tensor, two: Tensor, noise: float = NOISE) -> bool:
    if not one.numel():
        return False
    return float((one - two).abs().max()) > noise * max(float(one.abs().max()), 1e-30)


def leak_line(before: Look, after: Look, length: int, first: int) -> Place | None:
    """Find the first step that carries later tokens into earlier ones.

    Args:
        before, after: the same call, the second with all tokens from `first` on replaced.
        length: S, unlike every other size.
    """
    for step, one, two in _pairs(before.trace, after.trace):
        axes = _token_axes(one, length)
        for axis in axes:
            one, two = one.narrow(axis, 0, first), two.narrow(axis, 0, first)
        if axes and step.place and _differ(one, two):
            return step.place
    return None


@dataclass(frozen=True)
class Break:
    """The first step after which tokens are no longer in the order they were given in.

    positions: something given to the step differs from token to token whatever the tokens are.
    """

    step: Step
    positions: bool

    @property
    def rearranges(self) -> bool:
        """Whether the step only gives numbers another place."""
        return self.step.name in REARRANGING and not self.positions


def order_break(before: Look, after: Look, order: Tensor) -> Break | None:
    """Find the step that breaks the order of tokens.

    Args:
        before, after: the same call, the second with tokens in the order `order` (S,).
    """
    length = order.numel()
    for step, one, two in _pairs(before.trace, after.trace):
        axes = _token_axes(one, length)
        moved = one
        for axis in axes:
            moved = moved.index_select(axis, order)
        if axes and _differ(one, two) and _differ(moved, two, 1e-4):
            return Break(step, any(_is_table(tensor, length) for tensor in _unmoved(before.trace, step, after.trace)))
    return None


def _unmoved(before: Trace, step: Step, after: Trace) -> Iterator[Tensor]:
    """Give what a step got that is the same in both passes."""
    for one, two in zip(step.inputs, after.steps[step.index].inputs, strict=False):
        mine, other = before.value(one, step.index), after.value(two, step.index)
        if mine.shape == other.shape and torch.equal(mine, other):
            yield mine.detach()


def _is_table(tensor: Tensor, length: int) -> bool:
    for axis in _token_axes(tensor, length):
        first = tensor.narrow(axis, 0, 1)
        if bool((tensor != first).any()) and len(set(tensor.flatten().tolist())) > 2:  # two numbers are a mask
            return True
    return False


def varying_line(one: Look, other: Look, tensor: Tensor) -> Place | None:
    """Find the first step on the way to `tensor` whose rows of tokens differ although the tokens are equal.

    Args:
        one, other: two calls with equal tokens each, not the same ones: what is equal in both comes from no token.
        tensor: of the first call, (..., S, D).
    """
    behind = {step.index for step in makers(one.trace, tensor)}
    for step, mine, theirs in _pairs(one.trace, other.trace):
        if step.index in behind and step.place and _differ(mine, theirs):
            axes = _token_axes(mine, tensor.shape[-2])
            if any(_differ(mine, mine.narrow(axis, 0, 1).expand_as(mine), 1e-4) for axis in axes):
                return step.place
    return None


def changed_line(before: Trace, after: Trace) -> Place | None:
    """Find the first step that gave something else in the second of two passes."""
    for step, one, two in _pairs(before, after):
        if step.place and _differ(one, two):
            return step.place
    return None
