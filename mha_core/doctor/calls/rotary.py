"""Rotary positions for modules that want them handed over: made by the module's own family, or in the usual forms."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.convention import Convention, Maker, Request
from mha_core.doctor.calls.signs import class_source

FORMS = ("batch", "rows", "half", "batch half", "complex", "angles")
_WIDTHS = ("rotary_dim", "rotary_ndims", "rotary_emb_dim", "rope_dim", "qk_rope_head_dim", "rotary_embed_dim")


def rotary_widths(module: nn.Module) -> list[int]:
    """List the widths of a head that the module says it rotates, where that is only a part."""
    found = [vars(module).get(name) for name in _WIDTHS]
    return [width for width in found if isinstance(width, int) and not isinstance(width, bool) and width >= 2]


def sine_first(module: nn.Module) -> bool:
    """Tell whether forward reads (sin, cos) instead of (cos, sin)."""
    return re.search(r"\bsin\w*\s*,\s*cos\w*\s*=", class_source(module)) is not None


def family_rotary(module: nn.Module) -> Maker | None:
    """Make positions as the rotary class beside a transformers layer does, by its config; None where there is none."""
    home, config = sys.modules.get(type(module).__module__), getattr(module, "config", None)
    if config is None or not type(module).__module__.startswith("transformers."):
        return None
    named = [value for name, value in vars(home).items() if name.endswith("RotaryEmbedding")]
    for own in (value for value in named if getattr(value, "__module__", "") == type(module).__module__):
        try:
            rotary = own(config)
            _rotated(rotary, torch.zeros(1, 2, 2), torch.arange(2)[None], module)
        except Exception:  # a class made for something else: the usual forms are tried next
            continue

        def make(request: Request, rotary: nn.Module = rotary) -> Any:
            query = request.inputs.query
            places = (request.position + torch.arange(query.shape[1])).expand(query.shape[0], -1)
            return _rotated(rotary, query, places, module)

        return make
    return None


def _rotated(rotary: nn.Module, tokens: Tensor, places: Tensor, module: nn.Module) -> Any:
    """Call a rotary class, which in families with several kinds of layers is asked by the layer's kind."""
    try:
        return rotary(tokens, places)
    except (TypeError, AttributeError):
        return rotary(tokens, places, getattr(module, "layer_type", None) or "full_attention")


def unsized(form: str, which: int | None, swapped: bool = False) -> Maker:
    """Stand for a maker until the head dimension is known; `with_head_dim` puts the right one there."""

    def make(request: Request) -> Any:
        return request

    make.form = (form, which, swapped)  # type: ignore[attr-defined]
    return make


def rotary_maker(head_dim: int, form: str, which: int | None, swapped: bool) -> Maker:
    """Make cosines and sines of rotary positions.

    Args:
        form: (B, S, D) as LLaMA's for "batch", (S, D) "rows", (S, D / 2) "half", (B, S, D / 2) "batch half", complex
            (S, D / 2), or the "angles" alone.
        which: 0 for the cosines, 1 for the sines, None for both.
        swapped: both, the sines first.
    """

    def make(request: Request) -> Any:
        inputs = request.inputs
        angles = torch.outer(
            (request.position + torch.arange(inputs.query.shape[1])).float(),
            10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim),
        )
        if form == "complex":
            return torch.polar(torch.ones_like(angles), angles)
        if form == "angles":
            return angles
        if "half" not in form:
            angles = torch.cat([angles, angles], -1)
        if form.startswith("batch"):
            angles = angles.expand(inputs.query.shape[0], -1, -1)
        pair = (angles.cos().to(inputs.query.dtype), angles.sin().to(inputs.query.dtype))
        return (pair[::-1] if swapped else pair) if which is None else pair[which]

    return make


def with_head_dim(convention: Convention, head_dim: int) -> Convention:
    """Fill in the head dimension where rotary positions need it."""
    makers: dict[str, Maker] = {}
    for name, maker in convention.makers.items():
        form = getattr(maker, "form", None)
        makers[name] = maker if form is None else rotary_maker(head_dim, *form)
    return replace(convention, makers=makers)
