"""Chooses, for a module's mask arguments, how each is written: from trials, then documentation, source and names.

A form that hides what it should and nothing else settles it, unless the documentation says the opposite of it: then the
module is called as documented, and the checks will tell what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from mha_core.doctor.calls.convention import Convention
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.mask_forms import SHAPES, MaskUse, Scope
from mha_core.doctor.calls.mask_probing import BROKEN, CLEAR, KINDS_TRIED, Question, Tried, try_argument
from mha_core.doctor.calls.mask_words import (
    ADDED,
    HIDING,
    KEEPING,
    by_name,
    documented,
    in_source,
    natural_scope,
    unusual,
    written_shapes,
)
from mha_core.doctor.calls.roles import Argument
from mha_core.doctor.calls.signs import library

SCOPES: tuple[Scope, ...] = ("keys", "pairs", "sample_pairs")
TRANSFORMERS_SHAPES = ("(B, 1, 1, Sk)", "(1, 1, Sq, Sk)", "(B, 1, Sq, Sk)")  # its models make four axes of every mask
TRANSFORMERS_KINDS = ("add_min", "add", "keep")
Ask = Callable[[str], Question]


@dataclass(frozen=True)
class Masks:
    """Chosen masks, those only self-attention gets, and the arguments whose form is a guess."""

    masks: tuple[MaskUse, ...]
    self_masks: tuple[MaskUse, ...] = ()
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """A form for one scope of one argument; `sure` where it was seen to work."""

    use: MaskUse
    sure: bool


def find_masks(module: nn.Module, convention: Convention, ask: Ask, arguments: Sequence[Argument]) -> Masks:
    """Find how every mask argument is written; `ask("key" | "query" | "self")` gives the question for a stream.

    An argument that takes nothing about the keys is tried on the queries where there is a context (the self-attention
    inside a decoder layer), else in self-attention (a mask of the wrong length for other keys).
    """
    chosen: list[Chosen] = []
    own: list[Chosen] = []
    for argument in arguments:
        kinds = _kinds(module, argument)
        found = _choose(module, argument, _trials(module, ask, "key", argument, kinds), kinds)
        if not found and convention.takes == "context":
            own += _choose(module, argument, _trials(module, ask, "query", argument, kinds), kinds)
            if any(one.use.argument == argument.name for one in own):
                continue
        if not found and convention.takes == "qkv":
            found = _choose(module, argument, _trials(module, ask, "self", argument, kinds), kinds)
        chosen += found or _unseen(module, argument, kinds)
    guessed = tuple(dict.fromkeys(one.use.argument for one in (*chosen, *own) if not one.sure))
    return Masks(tuple(_one_each(module, chosen)), tuple(_one_each(module, own)), guessed)


def _one_each(module: nn.Module, chosen: Sequence[Chosen]) -> Iterator[MaskUse]:
    """Give one form per scope: sure before guessed, the argument made for it before others, forward's order last."""
    for scope in SCOPES:
        fitting = [one for one in chosen if one.use.scope == scope]
        fitting.sort(
            key=lambda one: (
                not one.sure,
                natural_scope(module, one.use.argument) not in (scope, None),
                natural_scope(module, one.use.argument) is None,
            )
        )
        if fitting:
            yield fitting[0].use


def _trials(
    module: nn.Module, ask: Ask, stream: str, argument: Argument, kinds: Sequence[str]
) -> dict[Scope, list[Tried]]:
    """Try all forms of every scope, or those whose shape is written down."""
    shapes: tuple[str, ...] = ()
    if argument.role != "lengths":
        shapes = TRANSFORMERS_SHAPES if _transformers(module) else written_shapes(module, argument.name)
    try:
        asked = ask(stream)
    except ModuleFailure:
        return {}
    return {scope: try_argument(asked, argument.name, scope, kinds, shapes) for scope in SCOPES}


def _transformers(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")


def _choose(
    module: nn.Module, argument: Argument, trials: dict[Scope, list[Tried]], kinds: Sequence[str]
) -> list[Chosen]:
    """Give the form for every scope; where nothing is right or clear, the likeliest kind in the first shape taken."""
    right = [one for tried in trials.values() for one in tried if one.right]
    natural = natural_scope(module, argument.name)
    if natural == "keys" and argument.role != "lengths":
        right = [one for one in right if one.use.scope == "keys"] or [one for one in right if one.use.scope != "pairs"]
        trials = trials if right else {"keys": trials.get("keys", [])}
    told = () if library(module) else documented(module, argument.name)
    against = {KEEPING: (*HIDING, *ADDED), HIDING: (*KEEPING, *ADDED)}.get(told, ())
    if right and not all(one.use.kind in against for one in right):
        return [Chosen(one.use, True) for one in right]
    clear = [max(tried, key=lambda one: one.contrast) for tried in trials.values() if tried]
    clear = [one for one in clear if one.contrast > CLEAR and one.use.kind not in against]
    if clear:
        return [Chosen(one.use, True) for one in clear]
    return _likeliest(natural, trials, kinds)


def _likeliest(natural: Scope | None, trials: dict[Scope, list[Tried]], kinds: Sequence[str]) -> list[Chosen]:
    found = []
    for tried in trials.values():
        if tried:
            best = min(tried, key=lambda one: (one.hidden >= BROKEN, kinds.index(one.use.kind)))
            found.append(Chosen(best.use, False))
    return [one for one in found if one.use.scope == natural] or found


def _unseen(module: nn.Module, argument: Argument, kinds: Sequence[str]) -> list[Chosen]:
    """Give the form a person would pass to an argument that raises on every form: what is offered must work."""
    if library(module) or unusual(argument.name):
        return []
    if argument.role == "lengths":
        return [Chosen(MaskUse(argument.name, "keys", "(B,)", "lengths"), False)]
    scope = natural_scope(module, argument.name) or "keys"
    usual = "(B, Sk)" if scope == "keys" else "(Sq, Sk)"
    shape = next((one for one in written_shapes(module, argument.name) if one in SHAPES[scope]), usual)
    return [Chosen(MaskUse(argument.name, scope, shape, kinds[0]), False)]


def _kinds(module: nn.Module, argument: Argument) -> tuple[str, ...]:
    """Order the kinds by how likely they are for this argument: by documentation, then source, then name."""
    if argument.role == "lengths":
        return ("lengths",)
    if _transformers(module):
        return TRANSFORMERS_KINDS
    first = documented(module, argument.name) or in_source(module, argument.name) or by_name(argument.name)
    return (*first, *(kind for kind in KINDS_TRIED if kind not in first))


def with_masks(convention: Convention, found: Masks) -> Convention:
    """Give the convention with these masks."""
    return replace(convention, masks=found.masks, self_masks=found.self_masks)
