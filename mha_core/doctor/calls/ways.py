"""Finds a way of calling a module that works: widths and conventions are tried until one answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from mha_core.doctor.calls import calling, candidates, functional
from mha_core.doctor.calls.convention import Answer, Convention, Inputs, Request
from mha_core.doctor.calls.expression import PersonCall
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.knobs import copied
from mha_core.doctor.calls.layout import GRID_LENGTHS, possible_layouts, written_layouts
from mha_core.doctor.calls.rotary import rotary_widths, with_head_dim
from mha_core.doctor.calls.signs import library
from mha_core.doctor.calls.sizes import Sizes, fixed_lengths, input_widths
from mha_core.errors import MhaError

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 2)
PROBE_SCALE = 0.3
MAX_TRIALS = 400
MASKS_IN_LAYOUTS = 3  # conventions tried per layout that nothing but the module's parts speaks for


@dataclass(frozen=True)
class Given:
    """What the person said; None where they said nothing."""

    embed_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    causal: bool | None = None
    batch_first: bool | None = None
    call: str | Callable[..., Any] | None = None


@dataclass(frozen=True)
class Way:
    """A convention with the widths of query, key and value; `failure` where no call went through."""

    convention: Convention
    widths: tuple[int, int, int]
    failure: ModuleFailure | None = None
    length: int | None = None  # the only sequence length that works, where others raise


class Prober:
    """Calls one copy of the module again and again without gradients, or a new one each time if calls leave traces."""

    def __init__(self, module: nn.Module, files: tuple[str, ...]) -> None:
        self.module = module
        self.files = files
        self.stateful = False
        self._twin = copied(module)

    def __call__(self, convention: Convention, request: Request) -> Answer:
        twin = copied(self.module) if self.stateful else self._twin
        with torch.no_grad():
            return calling.call(twin, convention, request, self.files)

    def raw(self, convention: Convention, request: Request) -> Any:
        """Give what the module returned, unread."""
        with torch.no_grad():
            return calling.raw(copied(self.module), convention, request, self.files)

    def settle(self, convention: Convention, request: Request) -> None:
        """Give lazy parameters their widths; find out whether a second call differs from the first, or fails."""
        if functional.unborn(self.module):
            self.module = copied(self.module)
            calling.call(self.module, convention, request, self.files)
        self.stateful = True
        first = self(convention, request).output
        self._twin, self.stateful = copied(self.module), False
        try:
            self(convention, request)
            again = self(convention, request).output
        except ModuleFailure:
            self.stateful = True
            return
        self.stateful = not torch.equal(torch.nan_to_num(first), torch.nan_to_num(again))


def find_way(
    prober: Prober, given: Given, sizes: Sizes, base: Convention, person: PersonCall | None
) -> tuple[Way, candidates.Signature]:
    """Try widths and conventions until one works.

    Where none does although every argument is understood and the width is known, the likeliest is given with its
    failure: a module that always raises is a finding, not a mystery.

    Raises:
        MhaError: no way is known.
    """
    signature = _signature(prober.module, person)
    first: Way | None = None
    trials = _trials(prober.module, given, sizes, signature, base, person)
    for way in islice(trials, MAX_TRIALS):
        try:
            prober(way.convention, request(way, probe_sizes(way, base.num_heads), False))
        except ModuleFailure as raised:
            failed = replace(way, failure=raised)
            if first is None or (_misfit(first) and not _misfit(failed)):
                first = failed
        else:
            return way, signature
    if first is not None:
        found = _bound(prober, first, base.num_heads) or _one_query(prober, first, base.num_heads)
        if found is not None:
            return found, signature
    if first is not None and first.failure is not None and (pooled := _pooled(first)):
        raise MhaError("call", type(prober.module).__name__, "a layer with one output per token", problem=pooled)
    if first is not None and not library(prober.module) and not signature.unknown and _understood(first, signature):
        return first, signature
    raise _cannot_call(prober.module, signature, first) from (first.failure if first else None)


def _signature(module: nn.Module, person: PersonCall | None) -> candidates.Signature:
    if person is None:
        return candidates.read_signature(module)
    roles = {"tokens": ("tokens",), "context": ("tokens", "context"), "qkv": ("query", "key", "value")}
    names = {"tokens": "x", "context": "context", "query": "q", "key": "k", "value": "v"}
    streams = {role: names[role] for role in roles.get(person.takes, ())}
    return candidates.Signature(person.takes, streams, (), ())


def _understood(way: Way, signature: candidates.Signature) -> bool:
    """Tell whether a failure is the module's own: no argument was missing and the width was right."""
    error = way.failure.error if way.failure else None
    missing = isinstance(error, TypeError) and "argument" in str(error) and "forward()" in str(error)
    return bool(signature.streams) and not missing and not _misfit(way)


def _misfit(way: Way) -> bool:
    """Tell whether the module raised because the width of the input was not what its first layers want."""
    text = way.failure.text if way.failure else ""
    return bool(
        re.search(r"mat1 and mat2|normalized_shape|input\[.*\] to have|was expecting embedding dimension", text)
    )


def _trials(
    module: nn.Module,
    given: Given,
    sizes: Sizes,
    signature: candidates.Signature,
    base: Convention,
    person: PersonCall | None,
) -> Iterator[Way]:
    heads = given.num_heads or sizes.num_heads
    if person is not None:
        convention = replace(
            base, takes=signature.takes, streams=signature.streams, call=person.function, call_masks=person.masks
        )
        yield from (Way(convention, widths) for widths in _widths(module, given, sizes, signature))
        return
    layouts = written_layouts(module)
    split = signature.takes == "qkv" and not functional.projects(module)
    if split:
        yield from (
            Way(*found) for found in functional.on_heads(module, given.embed_dim, heads, sizes, signature, base)
        )
    for widths in _widths(module, given, sizes, signature):
        head_dims = dict.fromkeys([*rotary_widths(module), sizes.head_dim or 0, widths[0] // (heads or 1)])
        for head_dim in [one for one in head_dims if one >= 2] or [2]:
            for convention in candidates.conventions(signature, base):
                yield from (
                    Way(with_head_dim(one, head_dim), widths)
                    for one in candidates.in_layouts(convention, (*layouts, "tokens"))
                )
    if not layouts:  # after everything that reads tokens
        for widths in _widths(module, given, sizes, signature):
            for convention in islice(candidates.conventions(signature, base), MASKS_IN_LAYOUTS):
                yield from (Way(one, widths) for one in candidates.in_layouts(convention, possible_layouts(module)))
    if signature.takes == "qkv" and not split:
        yield from (
            Way(*found) for found in functional.on_heads(module, given.embed_dim, heads, sizes, signature, base)
        )
    if signature.positional:  # forward(*args): after x alone, query, key and value
        three = replace(base, takes="qkv", streams={"query": "*", "key": "*", "value": "*"}, positional=True)
        yield from (Way(three, widths) for widths in _widths(module, given, sizes, signature))


def _widths(
    module: nn.Module, given: Given, sizes: Sizes, signature: candidates.Signature
) -> Iterator[tuple[int, int, int]]:
    known = [width for width in (given.embed_dim, sizes.embed_dim) if width]
    listed = input_widths(module)
    tried = list(dict.fromkeys([*known, *listed])) if given.embed_dim is None else [given.embed_dim]
    if not tried:
        tried = [
            (sizes.num_heads or functional.FUNCTIONAL_HEADS)
            * (sizes.head_dim or functional.by_temperature(module) or functional.FUNCTIONAL_DIM)
        ]
    tried = tried[:6]
    for width in tried:
        others = (sizes.key_dim or width, sizes.value_dim or sizes.key_dim or width)
        if signature.takes != "tokens":
            yield (width, *others)
        if others != (width, width) or signature.takes == "tokens":
            yield width, width, width
    if signature.takes in ("context", "qkv"):
        keys, values = (input_widths(module, part) or listed[:4] for part in ("key", "value"))
        for width in tried[:3]:
            for key in keys[:3]:
                if signature.takes == "context":
                    yield width, key, key
                else:
                    yield from ((width, key, value) for value in dict.fromkeys([*values[:2], key, width]))


def _bound(prober: Prober, failed: Way, heads: int | None) -> Way | None:
    """Find the one length a module is bound to, as windows and learned tables over pairs are."""
    grid = GRID_LENGTHS if candidates.is_grid(failed.convention) else ()
    for length in (*grid, *fixed_lengths(prober.module)):
        way = replace(failed, failure=None, length=length)
        try:
            prober(way.convention, request(way, probe_sizes(way, heads), False))
        except ModuleFailure:
            continue
        return way
    return None


def _pooled(way: Way) -> str:
    """Say that a module gives one vector per sample, "" where it does not."""
    text = way.failure.text if way.failure and way.failure.error is None else ""
    if re.search(rf"returned: \({PRIMES[0]}, \d+\)", text) is None:
        return ""
    return f"the module pools: {text}; the checks compare one output per token, so examine the attention inside it"


def _one_query(prober: Prober, failed: Way, heads: int | None) -> Way | None:
    """Find a module that answers one query per call, as a decoder's step does; it is called once for each."""
    if failed.convention.takes not in ("context", "qkv"):
        return None
    way = replace(failed, failure=None, convention=replace(failed.convention, one_query=True))
    try:
        prober(way.convention, request(way, probe_sizes(way, heads), True))
    except ModuleFailure:
        return None
    return way


def probe_sizes(way: Way, heads: int | None) -> tuple[int, int, int]:
    """Choose batch and lengths that are primes, differ from one another, and are none of the module's own sizes."""
    heads = way.convention.num_heads if way.convention.takes == "heads" else heads or 1
    taken = {heads, *way.widths, *(width // heads for width in way.widths)}
    batch, q_len, k_len = [size for size in PRIMES if size not in taken][:3]
    return (batch, q_len, k_len) if way.length is None else (batch, way.length, way.length)


def request(way: Way, sizes: tuple[int, int, int], cross: bool) -> Request:
    """Make the inputs of a probe, small so that softmax does not saturate."""
    generator = torch.Generator().manual_seed(11)
    batch, q_len, k_len = sizes
    q_width, k_width, v_width = way.widths

    def draw(length: int, width: int) -> torch.Tensor:
        return torch.randn(batch, length, width, generator=generator) * PROBE_SCALE

    query = draw(q_len, q_width)
    if not cross and q_width == k_width == v_width:
        return Request(Inputs(query, query, query))
    key = draw(k_len if cross else q_len, k_width)
    value = key if way.convention.takes == "context" else draw(key.shape[1], v_width)
    return Request(Inputs(query, key, value))


def _cannot_call(module: nn.Module, signature: candidates.Signature, way: Way | None) -> MhaError:
    """Say what could not be worked out, with a line to begin from."""
    name = type(module).__name__
    streams = ", ".join(signature.streams.values()) or "x"
    masks = "".join(f", {one.name}=keep" for one in signature.of("mask")[:1])
    words = {"tokens": "x", "context": "context", "query": "q", "key": "k", "value": "v"}
    line = (
        ", ".join(
            f"{argument}={words[role]}" if not signature.positional else "x"
            for role, argument in signature.streams.items()
        )
        or "x"
    )
    blanks = "".join(f", {unknown}=..." for unknown in signature.unknown)
    text = way.failure.text if way is not None and way.failure else "its arguments are unknown"
    unknown = f"nothing tells what {', '.join(signature.unknown)} should be" if signature.unknown else text
    text = re.sub(r"\.$", "", unknown)
    return MhaError(
        "call",
        name,
        "a line that calls it",
        problem=(
            f"{name} could not be called as module({streams}): {text}; "
            f'say how with --call "module({line}{masks}{blanks})"'
        ),
    )
