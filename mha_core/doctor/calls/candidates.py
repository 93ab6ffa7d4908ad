"""Ways a module may want to be called, likeliest first, from the names of forward's arguments."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.convention import Convention, Maker, Request, Takes
from mha_core.doctor.calls.layout import Layout, sides
from mha_core.doctor.calls.mask_forms import MaskUse
from mha_core.doctor.calls.packed import packed_count
from mha_core.doctor.calls.roles import MASKS, Argument, arguments
from mha_core.doctor.calls.rotary import FORMS, family_rotary, sine_first, unsized


@dataclass(frozen=True)
class Signature:
    """What forward's arguments say: streams by role, the others by role, and the names nobody can place."""

    takes: Takes
    streams: dict[str, str]
    others: tuple[Argument, ...]
    unknown: tuple[str, ...]
    positional: bool = False
    packed: bool = False
    rotary: Maker | None = None
    sine_first: bool = False

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
    if set(streams) == {"query", "key"}:  # keys that are the values too
        streams = {"tokens" if role == "query" else "context": name for role, name in streams.items()}
    if list(streams) == ["context"]:
        streams = {"tokens": streams["context"]}
    others = tuple(one for one in left if one.role)
    unknown = tuple(one.name for one in left if one.required and one.role in ("", "tokens", "context", "value", "key"))
    takes: Takes = "qkv" if {"key", "value"} & set(streams) else "context" if "context" in streams else "tokens"
    if list(streams) == ["tokens"] and (count := packed_count(module, streams["tokens"])) in (2, 3):
        roles_in = ("query", "key", "value") if count == 3 else ("tokens", "context")
        inside = dict.fromkeys(roles_in, streams["tokens"])
        return Signature("qkv" if count == 3 else "context", inside, others, unknown, packed=True)
    if not streams:
        parameters = inspect.signature(module.forward).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return Signature("tokens", {"tokens": "*"}, others, unknown, positional=True)
    return Signature(takes, streams, others, unknown, False, False, family_rotary(module), sine_first(module))


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
        packed=signature.packed,
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
    fixed |= {one.name: _sides for one in signature.of("sides") if one.required}
    fixed |= {one.name: partial(_side, place) for place in (0, 1) for one in signature.of(f"side {place}")}
    rotary = list(_rotary_choices(signature))
    if alibi := [one.name for one in signature.of("alibi") if one.required]:
        rotary = [{**made, alibi[0]: maker} for maker in (_none, _flat_alibi(base.num_heads)) for made in rotary]
    for unmasked, needs_context, made in itertools.product(_unmasked(signature), (False, True), rotary):
        if needs_context and signature.takes != "context":
            continue
        yield replace(base, makers={**fixed, **made}, unmasked=unmasked, needs_context=needs_context)


def in_layouts(convention: Convention, layouts: Sequence[Layout]) -> Iterator[Convention]:
    """Lay out everything so, or the query alone beside rows of tokens."""
    for layout in layouts:
        yield replace(convention, layout=layout, context_layout=layout)
        if convention.takes != "tokens" and layout != "tokens":
            yield replace(convention, layout=layout)


def is_grid(convention: Convention) -> bool:
    """Tell whether tokens are the places of a map, whose sides a module may want to be even."""
    measured = any(getattr(maker, "func", maker) in (_side, _sides) for maker in convention.makers.values())
    return measured or convention.layout in ("image", "grid")


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


def _sides(request: Request) -> tuple[int, int]:
    return sides(request.inputs.query.shape[1])


def _side(place: int, request: Request) -> int:
    return _sides(request)[place]


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
    if rotary and signature.rotary is not None:
        yield {**places, rotary[0].name: signature.rotary}
    for form in FORMS:
        makers: dict[str, Maker] = dict(places)
        if rotary:
            makers[rotary[0].name] = unsized(form, None, signature.sine_first)
        if cos and sin:
            makers[cos[0].name] = unsized(form, 0)
            makers[sin[0].name] = unsized(form, 1)
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
