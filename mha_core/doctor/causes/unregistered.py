"""Weights that a forward pass uses but `module.parameters()` lacks: no optimiser and no checkpoint sees them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mha_core.doctor.report import Place
from mha_core.doctor.traces.tracing import Trace

_PRODUCTS = ("linear", "matmul", "bmm", "einsum", "mm", "addmm", "baddbmm", "tensordot")


@dataclass(frozen=True, eq=False)
class Stray:
    """A weight outside the parameters; `learned` where autograd collects a gradient for it."""

    tensor: Tensor
    place: Place | None
    learned: bool


def strays(trace: Trace, module: nn.Module, given: set[int]) -> list[Stray]:
    """Find them in a trace.

    Args:
        trace: of one call of `module`.
        module: what was called.
        given: ids of tensors that came in as arguments.
    """
    registered = {id(t) for t in (*module.parameters(), *module.buffers())}
    memory = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    found: dict[int, Stray] = {}
    for step in trace.steps:
        for tensor in step.inputs:
            if id(tensor) in registered | given | found.keys() or not tensor.is_floating_point():
                continue
            if tensor.untyped_storage().data_ptr() in memory:
                continue
            if tensor.requires_grad and tensor.is_leaf:
                if trace.made(tensor) is not None and not isinstance(tensor, nn.Parameter):
                    continue  # an activation that was cut from its graph
                place = next((s.place for s in trace.used_by(tensor) if s.place is not None), step.place)
                found[id(tensor)] = Stray(tensor, place, True)
            elif step.name in _PRODUCTS and trace.made(tensor) is None and _looks_like_weights(tensor):
                found |= {id(tensor): Stray(tensor, step.place, False)} if _is_kept(module, tensor) else {}
    return list(found.values())


def _is_kept(module: nn.Module, tensor: Tensor) -> bool:
    """Whether an attribute of the module, or a list or dictionary in one, holds the tensor."""
    return any(_holds(value, tensor, 3) for part in module.modules() for value in vars(part).values())


def _holds(value: object, tensor: Tensor, depth: int) -> bool:
    if value is tensor:
        return True
    if depth and isinstance(value, list | tuple | set):
        return any(_holds(inner, tensor, depth - 1) for inner in value)
    if depth and isinstance(value, dict):
        return any(_holds(inner, tensor, depth - 1) for inner in value.values())
    return isinstance(value, nn.Module) and any(tensor is one for one in value.parameters())


def _looks_like_weights(tensor: Tensor) -> bool:
    """Whether a constant matrix looks drawn at random rather than built, as tables and rotations are."""
    if tensor.requires_grad or tensor.dim() != 2 or min(tensor.shape) < 4:
        return False
    values = tensor.detach()
    distinct = len(torch.unique(values)) > 0.9 * values.numel()
    centred = float(values.mean().abs()) < 0.2 * float(values.std())
    rows = (values - values.mean()) @ (values - values.mean()).T
    scale = rows.diagonal().clamp_min(1e-12).rsqrt()
    others = rows * scale[:, None] * scale[None] - torch.eye(rows.shape[0])
    return distinct and centred and float(others.abs().mean()) < 3 * tensor.shape[1] ** -0.5
