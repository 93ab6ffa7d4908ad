"""Functions of heads already split: attention without projections of its own, whose sizes nothing fixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from mha_core.doctor.calls.candidates import Signature, conventions
from mha_core.doctor.calls.convention import Convention
from mha_core.doctor.calls.rotary import with_head_dim
from mha_core.doctor.calls.sizes import Sizes

FUNCTIONAL_HEADS, FUNCTIONAL_DIM = 4, 6  # where nothing is said


def projects(module: nn.Module) -> bool:
    """Tell whether the module has matrices of its own that fix the width of its input."""
    return unborn(module) or any(p.dim() == 2 and min(p.shape) != 1 for p in module.parameters())


def unborn(module: nn.Module) -> bool:
    """Tell whether the module has lazy parameters, whose widths the first call decides."""
    return any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters())


def on_heads(
    module: nn.Module, embed_dim: int | None, heads: int | None, sizes: Sizes, signature: Signature, base: Convention
) -> Iterator[tuple[Convention, tuple[int, int, int]]]:
    """Give conventions and widths for functions of heads already split, (B, H, S, D) or (B, S, H, D)."""
    heads = heads or _leading(module) or FUNCTIONAL_HEADS
    dim = embed_dim // heads if embed_dim else sizes.head_dim or by_temperature(module) or FUNCTIONAL_DIM
    width = heads * dim
    order = (2, 1) if base.heads_axis == 2 else (1, 2)
    for axis in order:
        for convention in conventions(signature, base):
            split = replace(convention, takes="heads", num_heads=heads, heads_axis=axis, batch_first=True)
            yield with_head_dim(split, dim), (width, width, width)


def _leading(module: nn.Module) -> int | None:
    """Give the heads of parameters laid out per head, (H, 1, 1) or (1, H, 1, 1)."""
    for parameter in module.parameters():
        wide = [size for size in parameter.shape if size > 1]
        if len(wide) == 1 and parameter.dim() >= 3:
            return wide[0]
    return None


def by_temperature(module: nn.Module) -> int | None:
    """Give the head dimension whose root, or inverse root, is the module's temperature or scale."""
    for name in ("temperature", "scale", "scaling", "scale_factor", "sqrt_dim", "factor", "norm_factor", "temper"):
        value = getattr(module, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            dim = value**2 if value > 1 else value**-2
            if 2 <= round(dim) <= 1024 and abs(dim - round(dim)) < 1e-3:
                return round(dim)
    return None
