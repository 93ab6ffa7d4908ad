"""One call of a module by its convention: arguments in, output and weights out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.convention import Answer, Convention, Request
from mha_core.doctor.calls.failure import ModuleFailure, failures
from mha_core.doctor.calls.layout import Layout, laid
from mha_core.doctor.calls.mask_forms import MaskUse
from mha_core.doctor.calls.returns import read
from mha_core.doctor.calls.whole_mask import with_causality


def call(
    module: nn.Module, convention: Convention, request: Request, files: Sequence[str] = (), seed: int = 0
) -> Answer:
    """Call the module under a seeded generator of its own.

    Raises:
        ModuleFailure: it raised, it cannot be given this mask, or what it returned has no output.
    """
    if convention.one_query and request.inputs.query.shape[1] > 1:
        return _one_by_one(module, convention, request, files, seed)
    return read(seeded(seed, lambda: raw(module, convention, request, files)), convention, request)


def _one_by_one(module: nn.Module, convention: Convention, request: Request, files: Sequence[str], seed: int) -> Answer:
    """Ask query by query and join the answers."""
    inputs, pairs, answers = request.inputs, request.keep_pairs, []
    for row in range(inputs.query.shape[1]):
        one = replace(inputs, query=inputs.query[:, row : row + 1])
        rows = None if pairs is None else pairs[..., row : row + 1, :]
        answers.append(call(module, convention, replace(request, inputs=one, keep_pairs=rows), files, seed))
    weights = [answer.weights for answer in answers if answer.weights is not None]
    joined = torch.cat(weights, -2) if len(weights) == len(answers) else None
    return Answer(torch.cat([answer.output for answer in answers], 1), joined, answers[-1].extra)


def seeded(seed: int, run: Callable[[], Any]) -> Any:
    """Run something under a seeded generator and leave the outer one alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed notes a stack for each absent device
        return run()


def raw(module: nn.Module, convention: Convention, request: Request, files: Sequence[str] = (), **more: Any) -> Any:
    """Call the module and give what it returned; `more` are arguments to add."""
    if convention.call is not None:
        _refuse(convention, request)
        with failures(files):
            return convention.call(module, request)
    streams = _streams(convention, request)
    named = {**_others(convention, request), **_masks(convention, request), **more}
    with failures(files):
        if convention.packed:
            return module(tuple(streams.values()), **named)
        if convention.positional:
            return module(*streams.values(), **named)
        known = inspect.signature(module.forward).parameters.values()
        order = [one.name for one in known if one.kind is not one.KEYWORD_ONLY]
        names = [convention.streams[role] for role in streams]
        if order[: len(names)] == names:  # by place, as people call: hooks with args see the tensors
            return module(*streams.values(), **named)
        return module(**dict(zip(names, streams.values(), strict=True)), **named)


def _refuse(convention: Convention, request: Request) -> None:
    """Refuse masks the person's call has no name for."""
    keys = request.keep_keys is not None and "keys" not in convention.scopes
    pairs = request.keep_pairs is not None and "pairs" not in convention.scopes
    if keys or pairs:
        raise ModuleFailure("the call given has no name for this mask")


def _streams(convention: Convention, request: Request) -> dict[str, Tensor]:
    """Give the tensors by role, in the layout and in the order the module wants, one object where they are one."""
    inputs = request.inputs
    source = {"tokens": inputs.query, "query": inputs.query, "key": inputs.key, "value": inputs.value}
    source["context"] = inputs.key
    done: dict[tuple[int, str], Tensor] = {}
    found = {}
    for role in convention.streams:
        if role == "context" and inputs.is_self and not convention.needs_context:
            continue
        tensor = source[role]
        layout = convention.layout if role in ("tokens", "query") else convention.context_layout
        if (id(tensor), layout) not in done:
            done[id(tensor), layout] = _laid_out(tensor, convention, layout)
        found[role] = done[id(tensor), layout]
    return found


def _laid_out(tensor: Tensor, convention: Convention, layout: Layout) -> Tensor:
    if layout != "tokens":
        return laid(tensor, layout)
    if convention.takes == "heads":
        split = tensor.reshape(*tensor.shape[:2], convention.num_heads, -1)
        return split.transpose(1, 2).contiguous() if convention.heads_axis == 1 else split
    return (tensor if convention.batch_first else tensor.transpose(0, 1)).contiguous()  # views of it must not fail


def _others(convention: Convention, request: Request) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, maker in convention.makers.items():
        named[name] = maker(request)
    for name, asked, otherwise in convention.weights:
        value = asked if request.mode.weights else otherwise
        if value is not None:
            named[name] = value
    if request.causal is not None:
        named |= dict.fromkeys(convention.causal, request.causal)
    if request.caching and convention.use_cache is not None:
        named[convention.use_cache] = True
    if request.cache is not None and convention.cache is not None:
        named[convention.cache] = request.cache
    return named


def _masks(convention: Convention, request: Request) -> dict[str, Tensor]:
    """Write the masks in the module's own forms.

    Raises:
        ModuleFailure: no argument takes such a mask.
    """
    if convention.call is None and request.keep_keys is request.keep_pairs is None and not convention.unmasked:
        return {}
    request = with_causality(request) if convention.whole_masks else request
    batch, q_len = request.inputs.query.shape[:2]
    k_len = request.inputs.key.shape[1]
    dtype = request.inputs.query.dtype
    named: dict[str, Tensor] = {}
    for use in convention.unmasked:
        everything = {"keys": (batch, k_len), "pairs": (q_len, k_len), "sample_pairs": (batch, q_len, k_len)}
        named[use.argument] = use.build(
            torch.ones(everything[use.scope], dtype=torch.bool), convention.num_heads, dtype
        )
    for uses, keep in _assigned(convention, request):
        for use in uses:
            if not use.fits(keep):
                raise ModuleFailure(f"{use.argument} takes lengths: it can only hide keys at the end")
            named[use.argument] = use.build(keep, convention.num_heads, dtype)
    return named


def can_mask(convention: Convention, request: Request) -> bool:
    """Tell whether the masks of a request can be written in the module's own forms."""
    try:
        _refuse(convention, request) if convention.call else _masks(convention, request)
    except ModuleFailure:
        return False
    return True


def _assigned(convention: Convention, request: Request) -> list[tuple[tuple[MaskUse, ...], Tensor]]:
    """Decide which argument gets which mask; two masks for one argument become one over pairs per sample."""
    keys, pairs = request.keep_keys, request.keep_pairs
    if (
        pairs is not None
        and pairs.dim() == 3
        and bool((pairs == pairs[:1]).all())
        and not _uses(convention, request, "sample_pairs")
    ):
        pairs = pairs[0]
    by_keys = _uses(convention, request, "keys")
    by_pairs = _uses(convention, request, "pairs" if pairs is not None and pairs.dim() == 2 else "sample_pairs")
    clash = {use.argument for use in by_keys} & {use.argument for use in by_pairs}
    plan = []
    if (
        (keys is not None and not by_keys)
        or (pairs is not None and not by_pairs)
        or (clash and keys is not None and pairs is not None)
    ):
        joined = _joined(request, keys, pairs)
        by_both = _uses(convention, request, "sample_pairs")
        if by_both:
            return [(by_both, joined)]
        if bool((joined == joined[:1]).all()) and (by_one := _uses(convention, request, "pairs")):
            return [(by_one, joined[0])]
        raise ModuleFailure("no argument takes this mask")
    if keys is not None:
        plan.append((by_keys, keys))
    if pairs is not None:
        plan.append((by_pairs, pairs))
    return plan


def _uses(convention: Convention, request: Request, scope: str) -> tuple[MaskUse, ...]:
    masks = convention.masks + (convention.self_masks if request.inputs.is_self else ())
    return tuple(use for use in masks if use.scope == scope)


def _joined(request: Request, keys: Tensor | None, pairs: Tensor | None) -> Tensor:
    batch, q_len = request.inputs.query.shape[:2]
    keep = torch.ones(batch, q_len, request.inputs.key.shape[1], dtype=torch.bool)
    if keys is not None:
        keep &= keys.unsqueeze(1)
    return keep if pairs is None else keep & pairs
