"""Finds out how a module is called, by reading and by trying, and gathers what a `Subject` holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mha_core.doctor.calls import mask_choice, signs
from mha_core.doctor.calls.caching import Start, find_cache
from mha_core.doctor.calls.candidates import Signature
from mha_core.doctor.calls.causal_signs import declared_causal
from mha_core.doctor.calls.convention import Answer, Convention, Inputs, Mode, Request, Takes
from mha_core.doctor.calls.expression import PersonCall, person_call
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.key_influence import influence
from mha_core.doctor.calls.mask_probing import Question, question
from mha_core.doctor.calls.returns import leaves
from mha_core.doctor.calls.roles import MASKS
from mha_core.doctor.calls.sizes import Sizes, declared
from mha_core.doctor.calls.ways import Given, Prober, Way, find_way, probe_sizes, request
from mha_core.doctor.calls.whole_mask import replaces_causality
from mha_core.doctor.calls.words import Told, assumptions

QUIET = 1e-7  # relative movement of an output below which nothing moved


@dataclass(frozen=True)
class Found:
    """All that a `Subject` holds; the module is the person's, or a copy where lazy parameters had to be made."""

    module: nn.Module
    name: str
    files: tuple[str, ...]
    embed_dim: int
    key_dim: int
    value_dim: int
    out_dim: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    takes: Takes
    can_cross: bool
    batch_first: bool
    is_library: bool
    expects_causal: bool | None
    key_mask: bool
    pair_mask: bool
    sample_pair_mask: bool
    position_signs: tuple[str, ...]
    has_cache: bool
    assumed: dict[str, Any]
    convention: Convention
    cache_start: Start | None
    only_len: int | None


def find(module: nn.Module, given: Given) -> Found:
    """Read and probe a module.

    Raises:
        MhaError: no way of calling it is known.
    """
    files = signs.own_files(module)
    sizes = declared(module)
    heads = given.num_heads or sizes.num_heads
    order = signs.declared_batch_first(module) if given.batch_first is None else given.batch_first
    base = Convention(
        "tokens", {}, batch_first=order is not False, num_heads=heads or 1, heads_axis=signs.declared_heads_axis(module)
    )
    person = None if given.call is None else person_call(given.call, base.batch_first)
    prober = Prober(module, files)
    way, signature = find_way(prober, given, sizes, base, person)
    if way.failure is None:
        prober.settle(way.convention, request(way, probe_sizes(way, heads), False))
    way, cross = _crossing(prober, way, signature, heads)
    if signs.library(module) and not _gives_weights(prober, way):
        way = replace(way, convention=replace(way.convention, weights=()))
    heads = way.convention.num_heads if way.convention.takes == "heads" else heads or _seen_heads(prober, way)
    way = replace(way, convention=replace(way.convention, num_heads=heads or 1, out_dim=_out_dim(prober, way)))
    way = replace(way, convention=replace(way.convention, weights_by=_weights_by(prober, way)))
    masks = _masks(prober, way, signature, cross)
    way = replace(way, convention=mask_choice.with_masks(way.convention, masks))
    plain = request(way, probe_sizes(way, heads), False)
    if way.failure is None and replaces_causality(module, prober, way.convention, plain):
        way = replace(way, convention=replace(way.convention, whole_masks=True))
    start = None if way.failure else find_cache(prober.module, way.convention, plain, files)
    return _gathered(prober, given, sizes, way, _Seen(cross, heads, order, masks, start, person))


@dataclass(frozen=True)
class _Seen:
    cross: bool
    heads: int | None
    order: bool | None
    masks: mask_choice.Masks
    start: Start | None
    person: PersonCall | None


def _gathered(prober: Prober, given: Given, sizes: Sizes, way: Way, seen: _Seen) -> Found:
    module, convention, widths = prober.module, way.convention, way.widths
    kv_heads = given.num_kv_heads or sizes.num_kv_heads or seen.heads
    expects = declared_causal(module) if given.causal is None else given.causal
    if given.causal is None and signs.library(module):
        expects = True if _acts_causally(prober, way) else None
    told = Told(
        way,
        seen.heads,
        given.batch_first,
        seen.order,
        expects,
        seen.masks.guessed,
        _mixing(prober, way),
        "" if seen.person is None else seen.person.text,
    )
    return Found(
        module=module,
        name=signs.name_of(module),
        files=prober.files,
        embed_dim=widths[0],
        key_dim=widths[1],
        value_dim=widths[2],
        out_dim=convention.out_dim or widths[0],
        num_heads=seen.heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(sizes, way, seen.heads),
        takes=convention.takes,
        can_cross=seen.cross,
        batch_first=convention.batch_first,
        is_library=signs.library(module),
        expects_causal=expects,
        key_mask="keys" in convention.scopes,
        pair_mask="pairs" in convention.scopes,
        sample_pair_mask="sample_pairs" in convention.scopes,
        position_signs=signs.position_signs(module),
        has_cache=seen.start is not None,
        assumed=assumptions(told),
        convention=convention,
        cache_start=seen.start,
        only_len=way.length,
    )


def _head_dim(sizes: Sizes, way: Way, heads: int | None) -> int | None:
    if way.convention.takes == "heads":
        return way.widths[0] // way.convention.num_heads
    if sizes.head_dim:
        return sizes.head_dim
    return way.widths[0] // heads if heads and way.widths[0] % heads == 0 else None


def _crossing(prober: Prober, way: Way, signature: Signature, heads: int | None) -> tuple[Way, bool]:
    """Tell whether query and key may differ, and give the way without a context that cannot be used.

    A person's own module that raises on other keys than its tokens offers them all the same, unless it refuses them.
    """
    convention = way.convention
    if convention.takes == "tokens":
        return way, False
    if way.failure is not None:
        return way, True
    optional = convention.takes == "context" and not convention.needs_context and convention.call is None
    library = signs.library(prober.module)
    try:
        moved = influence(lambda r: prober(convention, r), request(way, probe_sizes(way, heads), True))
    except ModuleFailure as failure:
        refused = isinstance(failure.error, AssertionError | NotImplementedError | ValueError | AttributeError)
        offered = not (library or refused)
    else:
        offered = bool((moved > 0).any()) or not library
    if offered or not optional:
        return way, offered
    alone = {"tokens": convention.streams["tokens"]}
    return replace(way, convention=replace(convention, takes="tokens", streams=alone)), False


def _seen_heads(prober: Prober, way: Way) -> int | None:
    """Count heads in the weights the module returns."""
    if way.failure is not None:
        return None
    made = replace(request(way, probe_sizes(way, None), False), mode=Mode(weights=True))
    try:
        weights = prober(way.convention, made).weights
    except ModuleFailure:
        return None
    if weights is not None and weights.dim() == 4:
        return int(weights.shape[1])
    shapes = [tuple(p.shape) for p in prober.module.parameters() if p.dim() == 3 and way.widths[0] in p.shape]
    return next(
        (shape[1] if shape[0] == way.widths[0] else shape[0] for shape in shapes), None
    )  # (E, H, D) or (H, E, D)


def _weights_by(prober: Prober, way: Way) -> Literal["batch", "heads"]:
    """Tell which of batch and heads runs slower in returned weights: one sample is changed, some rows move."""
    made = replace(_plain(way), mode=Mode(weights=True))
    batch, heads = made.inputs.query.shape[0], way.convention.num_heads
    if way.failure is not None or heads == 1 or not made.inputs.is_self:
        return "batch"
    tokens = made.inputs.query.clone()
    tokens[0] = tokens[0].flip(0).flip(1)
    try:
        before, after = (
            list(leaves(prober.raw(way.convention, replace(made, inputs=inputs))))
            for inputs in (made.inputs, Inputs(tokens, tokens, tokens))
        )
    except ModuleFailure:
        return "batch"
    for (_, old), (_, new) in zip(before, after, strict=False):
        if not isinstance(old, Tensor) or old.shape != new.shape or old.dim() not in (3, 4):
            continue
        if old.dim() == 4 and tuple(old.shape[:2]) == (heads, batch):
            return "heads"
        if old.dim() == 3 and old.shape[0] == batch * heads and old.shape[1] == made.inputs.query.shape[1]:
            moved = (old != new).flatten(1).any(1).nonzero().flatten().tolist()
            return "heads" if moved and moved == list(range(0, batch * heads, batch)) else "batch"
    return "batch"


def _masks(prober: Prober, way: Way, signature: Signature, cross: bool) -> mask_choice.Masks:
    arguments = signature.of(*MASKS)
    if not arguments or way.convention.call is not None or way.failure is not None:
        return mask_choice.Masks(())
    asked: dict[str, Question] = {}

    def ask(stream: str) -> Question:
        if stream not in asked:
            made = request(way, probe_sizes(way, way.convention.num_heads), cross and stream != "self")
            asked[stream] = question(prober, way.convention, made, "query" if stream == "query" else "key")
        return asked[stream]

    return mask_choice.find_masks(prober.module, way.convention, ask, arguments)


def _gives_weights(prober: Prober, way: Way) -> bool:
    """Tell whether a plain call with weights asked for goes through; a library's layer may need a mask for that."""
    return _tried(lambda: prober(way.convention, replace(_plain(way), mode=Mode(weights=True)))) is not None


def _tried(probe: Callable[[], Answer]) -> Answer | None:
    try:
        return probe()
    except ModuleFailure:
        return None


def _out_dim(prober: Prober, way: Way) -> int:
    answer = _tried(lambda: prober(way.convention, _plain(way)))
    return way.widths[0] if answer is None else int(answer.output.shape[-1])


def _plain(way: Way) -> Request:
    return request(way, probe_sizes(way, way.convention.num_heads), False)


def _acts_causally(prober: Prober, way: Way) -> bool:
    """Tell whether a plain call lets no later token move an earlier output, and earlier ones move later ones."""
    made = _plain(way)
    if not made.inputs.is_self:
        return False
    try:
        moved = influence(lambda r: prober(way.convention, r), made)
    except ModuleFailure:
        return False
    moved = torch.nan_to_num(moved)
    return bool(moved.triu(1).max() == 0) and bool(moved.tril(-1).max() > 0)


def _mixing(prober: Prober, way: Way) -> str:
    """Say along which axes of the module's own layout one token moves others."""
    made = _plain(way)
    base = _tried(lambda: prober(way.convention, made))
    if base is None or not made.inputs.is_self:
        return ""
    tokens = made.inputs.query.clone()
    tokens[0, 0] = tokens[0, 0].flip(0) + 0.1 * torch.arange(tokens.shape[-1])  # a plain shift is lost in a layer norm
    moved = _tried(lambda: prober(way.convention, replace(made, inputs=type(made.inputs)(tokens, tokens, tokens))))
    if moved is None:
        return ""
    changed = (moved.output - base.output).abs().amax(-1) > QUIET * (1 + float(base.output.abs().max()))
    along_tokens, along_batch = bool(changed[0, 1:].any()), bool(changed[1:, 0].any())
    axes = (1, 0) if way.convention.batch_first else (0, 1)
    seen = [
        f"axis {axis} ({name})"
        for axis, name, there in zip(axes, ("tokens", "samples"), (along_tokens, along_batch), strict=True)
        if there
    ]
    return " and ".join(seen)
