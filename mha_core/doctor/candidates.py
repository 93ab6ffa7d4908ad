"""Ways a module may want to be called, likeliest first, from the names of forward's arguments."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.convention import Convention, Maker, Request, Takes
from mha_core.doctor.mask_forms import MaskUse
from mha_core.doctor.roles import MASKS, Argument, arguments


@dataclass(frozen=True)
class Signature:
    """What forward's arguments say: streams by role, the others by role, and the names nobody can place."""

    takes: Takes
    streams: dict[str, str]
    others: tuple[Argument, ...]
    unknown: tuple[str, ...]
    positional: bool = False

    def of(self, *roles: str) -> tuple[Argument, ...]:
        """Give the arguments with these roles."""
        return tuple(one for one in self.others if one.role in roles)


def read_signature(module: nn.Module) -> Signature:
    """Read forward's signature; the streams come in the order forward has them."""
    found = list(arguments(module.forward))
    roles = {one.role for one in found}
    if any(one.role == "tokens" and one.required for one in found) and not {"key", "value"} & roles:
        found = [one for one in found if one.role != "query" or one.required]  # an optional second query
        roles = {one.role for one in found}
    streams: dict[str, str] = {}
    for one in found:
        role = _stream_role(one, roles, streams)
        if role is not None and role not in streams:
            streams[role] = one.name
    left = [one for one in found if one.name not in streams.values()]
    if not streams:
        streams, left = _by_place(left)
    if list(streams) == ["context"]:
        streams = {"tokens": streams["context"]}
    others = tuple(one for one in left if one.role)
    unknown = tuple(one.name for one in left if one.required and one.role in ("", "tokens", "context", "value", "key"))
    takes: Takes = "qkv" if {"key", "value"} & set(streams) else "context" if "context" in streams else "tokens"
    if not streams:
        parameters = inspect.signature(module.forward).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return Signature("tokens", {"tokens": "*"}, others, unknown, positional=True)
    return Signature(takes, streams, others, unknown)


def _stream_role(one: Argument, roles: set[str], streams: dict[str, str]) -> str | None:
    """Decide which tensor an argument is; "tokens" beside key or value is the query, "query" alone the tokens."""
    has_key = bool({"key", "value"} & roles)
    if one.role in ("query", "tokens"):
        if "query" in roles and one.role == "tokens":
            return "context" if one.required and not has_key and "context" not in roles else None
        if "tokens" in streams or "query" in streams:
            return "context" if one.required and not has_key and "context" not in roles else None
        return "query" if has_key else "tokens"
    if one.role in ("key", "value"):
        return one.role if {"query", "tokens"} & roles else None
    if one.role == "context" and not has_key:
        return "context"
    return None


def _by_place(left: list[Argument]) -> tuple[dict[str, str], list[Argument]]:
    """Take required arguments whose names say nothing by their number: x; x and context; query, key and value."""
    nameless = [one for one in left if one.required and one.positional and one.role in ("", "key", "value", "query")]
    wanted = {1: ("tokens",), 2: ("tokens", "context"), 3: ("query", "key", "value")}.get(len(nameless), ())
    streams = {role: one.name for role, one in zip(wanted, nameless, strict=False)}
    return streams, [one for one in left if one.name not in streams.values()]


def conventions(signature: Signature, base: Convention) -> Iterator[Convention]:
    """Give conventions to try: with and without optional parts, masks left out, None, or hiding nothing."""
    base = replace(
        base,
        takes=signature.takes,
        streams=signature.streams,
        positional=signature.positional,
        weights=_weights(signature),
        causal=tuple(one.name for one in signature.of("causal")),
        cache=next((one.name for one in signature.of("cache")), None),
        use_cache=next((one.name for one in signature.of("use_cache")), None),
    )
    fixed: dict[str, Maker] = {}
    for one in signature.others:
        if one.required and one.role in ("cache", "head_mask", *MASKS):
            fixed[one.name] = _none
        if one.required and one.role in ("use_cache", "weights", "causal", "average"):
            fixed[one.name] = _false
    fixed |= {one.name: _zero_residual for one in signature.of("residual")}
    rotary = list(_rotary_choices(signature))
    if alibi := [one.name for one in signature.of("alibi") if one.required]:
        rotary = [{**made, alibi[0]: maker} for maker in (_none, _flat_alibi(base.num_heads)) for made in rotary]
    for unmasked, needs_context, made in itertools.product(_unmasked(signature), (False, True), rotary):
        if needs_context and signature.takes != "context":
            continue
        yield replace(base, makers={**fixed, **made}, unmasked=unmasked, needs_context=needs_context)


def _weights(signature: Signature) -> tuple[tuple[str, Any, Any], ...]:
    asked: list[tuple[str, Any, Any]] = [(one.name, True, False) for one in signature.of("weights")]
    return (*asked, *((one.name, False, None) for one in signature.of("average")))


def _unmasked(signature: Signature) -> list[tuple[MaskUse, ...]]:
    found: list[tuple[MaskUse, ...]] = [()]
    masks = signature.of(*MASKS)
    if masks and len(masks) <= 3:
        for scope, shape, kind in (
            ("keys", "(B, Sk)", "keep"),
            ("pairs", "(Sq, Sk)", "keep"),
            ("keys", "(B, 1, 1, Sk)", "keep"),
            ("sample_pairs", "(B, Sq, Sk)", "keep"),
            ("sample_pairs", "(B, 1, Sq, Sk)", "keep"),
            ("pairs", "(Sq, Sk)", "add"),
            ("keys", "(B, 1, 1, Sk)", "add"),
            ("sample_pairs", "(B, 1, Sq, Sk)", "add"),
            ("keys", "(B, Sk)", "hide"),
            ("keys", "(B, Sk)", "one"),
            ("keys", "(B,)", "lengths"),
        ):
            found.append(tuple(MaskUse(one.name, scope, shape, kind) for one in masks))  # type: ignore[arg-type]
    return found


def _none(request: Request) -> None:
    return None


def _zero_residual(request: Request) -> Tensor:
    return torch.zeros_like(request.inputs.query)


def _flat_alibi(heads: int) -> Maker:
    """Give slopes of zero, (B * H, 1, Sk)."""
    return lambda request: torch.zeros(request.inputs.query.shape[0] * heads, 1, request.inputs.key.shape[1])


def _false(request: Request) -> bool:
    return False


def _rotary_choices(signature: Signature) -> Iterator[dict[str, Maker]]:
    """Give makers for positions, first none where they may be left out."""
    places: dict[str, Maker] = {
        one.name: _place_maker(one)
        for one in signature.of("positions")
        if one.required or _place_maker(one) is _position
    }
    rotary, cos, sin = signature.of("rotary"), signature.of("cos"), signature.of("sin")
    needed = any(one.required for one in (*rotary, *cos, *sin))
    if not needed:
        yield dict(places)
    if not rotary and not (cos and sin):
        if any(one for one in signature.of("positions")):
            yield {one.name: _positions for one in signature.of("positions")}
            yield {one.name: _row_positions for one in signature.of("positions")}
        return
    for form in ("batch", "rows", "half", "complex", "angles"):
        makers: dict[str, Maker] = dict(places)
        if rotary:
            makers[rotary[0].name] = _rotary(form, None)
        if cos and sin:
            makers[cos[0].name] = _rotary(form, 0)
            makers[sin[0].name] = _rotary(form, 1)
        yield makers


def _positions(request: Request) -> Tensor:
    batch, q_len = request.inputs.query.shape[:2]
    return (request.position + torch.arange(q_len)).expand(batch, -1)


def _place_maker(argument: Argument) -> Maker:
    """Give a start for arguments such as start_pos, one place per token for others."""
    number = isinstance(argument.default, int) or re.search("start|offset", argument.name)
    return _position if number else _positions


def _row_positions(request: Request) -> Tensor:
    return request.position + torch.arange(request.inputs.query.shape[1])


def _position(request: Request) -> int:
    return request.position


def _rotary(form: str, which: int | None) -> Maker:
    def make(request: Request) -> Any:
        return request  # replaced by `subject` once the head dimension is known

    make.form = form  # type: ignore[attr-defined]
    make.which = which  # type: ignore[attr-defined]
    return make


def rotary_maker(form: str, which: int | None, head_dim: int) -> Maker:
    """Make cosines and sines of rotary positions: (B, S, D) as LLaMA's, (S, D), (S, D / 2), or complex (S, D / 2)."""

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
        if form != "half":
            angles = torch.cat([angles, angles], -1)
        if form == "batch":
            angles = angles.expand(inputs.query.shape[0], -1, -1)
        pair = (angles.cos().to(inputs.query.dtype), angles.sin().to(inputs.query.dtype))
        return pair if which is None else pair[which]

    return make


def with_head_dim(convention: Convention, head_dim: int) -> Convention:
    """Fill in the head dimension where rotary positions need it."""
    makers: dict[str, Callable[[Request], Any]] = {}
    for name, maker in convention.makers.items():
        form = getattr(maker, "form", None)
        makers[name] = maker if form is None else rotary_maker(form, getattr(maker, "which", None), head_dim)
    return replace(convention, makers=makers)
