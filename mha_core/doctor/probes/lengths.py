"""Which numbers of tokens a module takes, and whether it refuses the others or crashes on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from mha_core.doctor.probes.influence import Probe
from mha_core.doctor.subject import ModuleFailure, Subject

_DELIBERATE = ("raise", "assert")
_LENGTHS_TRIED = WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], ModuleFailure | None]]()


def length_failure(
    subject: Subject, length: int, *, batch: int = 2, masks: dict[str, Any] | None = None
) -> ModuleFailure | None:
    """Try a number of tokens; gives what the module raised, None where it works. Answers without masks are kept."""
    known = _LENGTHS_TRIED.setdefault(subject.module, {})
    if masks is None and (batch, length) in known:
        return known[batch, length]
    failure: ModuleFailure | None = None
    try:
        Probe(subject, masks=masks or {}).output(subject.inputs(batch, length))
    except ModuleFailure as raised:
        failure = raised
    if masks is None:
        known[batch, length] = failure
    return failure


def usable_lengths(subject: Subject, lengths: Sequence[int], *, batch: int = 2) -> tuple[int, ...]:
    """Keep the lengths the module accepts; where it accepts none of them, look for others.

    Raises:
        ModuleFailure: no number of tokens works.
    """
    if subject.only_len is not None:
        return (subject.only_len,)
    usable = tuple(length for length in lengths if length_failure(subject, length, batch=batch) is None)
    if any(length > 1 for length in usable):
        return usable
    for length in _fixed_lengths(subject.module):
        if length not in lengths and length_failure(subject, length, batch=batch) is None:
            return (length,)
    failure = length_failure(subject, lengths[0], batch=batch)
    assert failure is not None
    raise failure


def _fixed_lengths(module: nn.Module) -> list[int]:
    """Guess the number of tokens of a module made for one: whole numbers it holds, and small counts and squares."""
    held = {int(v) for part in module.modules() for v in vars(part).values() if isinstance(v, int)}
    sides = {size for part in module.modules() for tensor in part.buffers(recurse=False) for size in tensor.shape}
    squares = {side * side for side in held | {4, 7, 8, 14} if side < 17}
    guesses = sorted({*range(2, 33), *held, *sides, *squares})
    return [length for length in guesses if 1 < length <= 256]


def is_deliberate(failure: ModuleFailure) -> bool:
    """Tell whether the module refused on purpose: a raise or an assert of the person's own, not torch's crash."""
    refusals = (ValueError, AssertionError, NotImplementedError, TypeError)
    wrote = failure.place is None or failure.place.code.startswith(_DELIBERATE)
    return isinstance(failure.error, refusals) and wrote
