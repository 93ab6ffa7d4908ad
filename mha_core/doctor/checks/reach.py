"""Reach: does every output depend on every token it should, in every head and from all channels?

The first look is at outputs, with one token replaced at a time. The second is inside (`head_rows`): heads that were
split without a transpose can reach every token and still compare the wrong ones. Windows, strides and other patterns
that stay the same when the sequence grows are deliberate; patterns made of S / H blocks are a scrambled reshape.

Axes: B batch, S tokens, H heads, D head_dim, E embed_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.doctor.calls.candidates import is_grid
from mha_core.doctor.calls.layout import sides
from mha_core.doctor.causes.mistakes import first_named, split_mistake, unequal_lengths
from mha_core.doctor.causes.pointing import attention_line
from mha_core.doctor.probes.head_findings import look_inside
from mha_core.doctor.probes.influence import NOISE, ROUNDING, Probe, depends, influence, key_part, movement, says_local
from mha_core.doctor.probes.lengths import is_deliberate, length_failure, usable_lengths
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Mode, ModuleFailure, Subject

BATCH, LENGTHS = 2, (7, 12, 1)


@dataclass(frozen=True)
class Map:
    """Which output of a sample depends on which of its tokens, at one length. found: (S, S), row = output."""

    length: int
    weights: bool
    found: Tensor
    wanted: Tensor

    @property
    def missing(self) -> Tensor:
        """Pairs that should depend and do not. (S, S)."""
        return self.wanted & ~self.found


def check(subject: Subject) -> CheckResult:
    """Test which token reaches which output."""
    lengths = usable_lengths(subject, LENGTHS, batch=BATCH)
    refused = _refused_length(subject, lengths)
    if refused is not None:
        return refused
    maps = [_map(subject, length, weights) for length, weights in _uses(lengths)]
    incomplete = next((found for found in maps if bool(found.missing.any())), None)
    if incomplete is not None and not _is_pattern(subject, maps):
        return _incomplete(subject, incomplete, maps)
    length = lengths[0]
    inside = look_inside(subject, length) or _remembers(subject, lengths)
    if inside is not None and inside.status in ("fail", "warn"):
        return inside
    if incomplete is not None:
        return _pattern(incomplete)
    if inside is not None:
        return inside
    causal = bool((~maps[0].wanted).any())
    whom = "every token up to itself" if causal else "every token"
    evidence = {"tokens": [found.length for found in maps], "pairs_tested": sum(int(m.wanted.sum()) for m in maps)}
    return CheckResult("reach", "pass", f"every output depends on {whom}, at {_spoken(lengths)} tokens", evidence)


def _uses(lengths: tuple[int, ...]) -> list[tuple[int, bool]]:
    return [(lengths[0], False), (lengths[0], True), *((length, False) for length in lengths[1:])]


def _spoken(lengths: tuple[int, ...]) -> str:
    return ", ".join(str(length) for length in sorted(lengths))


def _refused_length(subject: Subject, usable: tuple[int, ...]) -> CheckResult | None:
    """Judge a length that crashes although longer ones work: a number of heads hides in a reshape."""
    for length in LENGTHS:
        failure = length_failure(subject, length, batch=BATCH)
        if failure is None or is_deliberate(failure) or length > max(usable) or len(usable) == 1:
            continue
        heads = subject.num_heads or 1
        by_heads = heads > 1 and all(other % heads == 0 for other in usable)
        status = "fail" if by_heads or length == 1 else "warn"
        reason = f"{length} tokens raise {failure.text}, while {_spoken(usable)} tokens work"
        evidence = {"tokens": length, "tokens_that_work": list(usable), "num_heads": subject.num_heads}
        cause = "the number of tokens is divided by the number of heads" if by_heads else ""
        return CheckResult("reach", status, reason, evidence, cause, failure.place)  # type: ignore[arg-type]
    return None


def _remembers(subject: Subject, lengths: tuple[int, ...]) -> CheckResult | None:
    """Call one copy with few tokens and then with more: a mask or table kept from the first call does not fit."""
    several = sorted(length for length in lengths if length > 1)
    if len(several) < 2:
        return None
    few, more = several[:2]
    used, inputs = Probe(subject), subject.inputs(BATCH, more)
    used.output(subject.inputs(BATCH, few))
    wanted = Probe(subject).output(inputs)
    evidence = {"tokens_first": few, "tokens_then": more}
    try:
        change = float(movement(wanted, used.output(inputs)).max())
    except ModuleFailure as failure:
        reason = f"{more} tokens work in a fresh copy, and raise after a call with {few}: {failure.text}"
        cause = "something made for the first call is kept"
        return CheckResult("reach", "fail", reason, evidence, cause, failure.place)
    if change <= ROUNDING:
        return None
    reason = (
        f"after a call with {few} tokens, {more} tokens give another output than in a fresh copy, by {change:.2g} of "
    )
    return CheckResult("reach", "fail", f"{reason}its size", evidence, "something made for the first call is kept")


def _map(subject: Subject, length: int, weights: bool) -> Map:
    probe = Probe(subject, Mode(weights=weights))
    wanted = torch.ones(length, length, dtype=torch.bool)
    if subject.expects_causal:
        wanted = wanted.tril()
    found = depends(probe, lambda seed: subject.inputs(BATCH, length, seed=seed), wanted=wanted)
    for one_sided in (wanted.tril(), wanted.triu()):  # whether that direction is right is the question of causality
        only = length > 2 and not bool((found & ~one_sided).any()) and int((found & one_sided).sum()) > length
        if only and subject.expects_causal is not True:
            wanted = one_sided
    return Map(length, weights, found, wanted)


def _is_pattern(subject: Subject, maps: list[Map]) -> bool:
    """Tell whether what is missing is a deliberate structure: equal at two lengths, and known to everybody."""
    first, longest = maps[0], max(maps, key=lambda found: found.length)
    if is_grid(subject.convention) and all(_is_axial(found) for found in maps):
        return True
    if bool((maps[1].found != first.found).any()) or _unheard(first) or _only_itself(first):
        return False
    if longest.length > first.length:
        same = bool((longest.found[: first.length, : first.length] == first.found).all())
        return same or (says_local(subject) and not _is_blocks_of_heads(subject, first))
    return not _is_blocks_of_heads(subject, first)


def _is_axial(found: Map) -> bool:
    """Tell whether places of a map see their own row and column."""
    width = sides(found.length)[1]
    place = torch.arange(found.length)
    row, column = place // width, place % width
    crossed = (row[:, None] == row) | (column[:, None] == column)
    return bool((found.found == crossed).all())


def _only_itself(found: Map) -> bool:
    return found.length > 1 and not bool((found.found & ~torch.eye(found.length, dtype=torch.bool)).any())


def _unheard(found: Map) -> list[int]:
    """Give tokens that reach no output but their own, although they should."""
    others = ~torch.eye(found.length, dtype=torch.bool)
    wanted, heard = (found.wanted & others).any(0), (found.found & others).any(0)
    return [int(token) for token in (wanted & ~heard).nonzero()[:, 0]]


def _is_blocks_of_heads(subject: Subject, found: Map) -> bool:
    """Tell whether tokens see each other in blocks of S / H."""
    size = found.length // (subject.num_heads or 1)
    block = torch.arange(found.length) // max(size, 1)
    return size > 1 and bool((found.found == (block[:, None] == block[None, :])).all())


def _incomplete(subject: Subject, found: Map, maps: list[Map]) -> CheckResult:
    """Report outputs that miss tokens, with the likeliest mistake and its line."""
    row, token = (int(i) for i in found.missing.nonzero()[0])
    wanted, missing = int(found.wanted.sum()), int(found.missing.sum())
    seen = [int(i) for i in found.found[row].nonzero()[:, 0]]
    reason = f"output {row} of {found.length} does not depend on token {token}: it depends on tokens {seen}"
    if _only_itself(found):
        reason = f"every output depends on its own token alone, tested with {found.length} tokens"
    elif _unheard(found):
        reason = f"token {_unheard(found)[0]} of {found.length} reaches no output but its own"
    evidence = {
        "tokens": found.length,
        "weights_wanted": found.weights,
        "pairs_missing": missing,
        "pairs_wanted": wanted,
        "tokens_output_0_depends_on": [int(i) for i in maps[0].found[0].nonzero()[:, 0]],
        "smallest_example": {"output": row, "token": token},
    }
    look = Probe(subject, Mode(weights=found.weights)).look(subject.inputs(BATCH, found.length))
    cause, where = first_named(split_mistake(subject, look, BATCH, found.length), unequal_lengths(look))
    where = where or attention_line(look)
    if not cause and _only_itself(found) and _along_batch(subject, found.length):
        cause = "attention runs along axis 0, over the samples of the batch"
    if not cause and _is_blocks_of_heads(subject, found):
        cause = "heads were split with view without a transpose: each sees a slice of the sequence"
    return CheckResult("reach", "fail", reason, evidence, cause, where)


def _along_batch(subject: Subject, length: int) -> bool:
    inputs = subject.inputs(BATCH, length)
    moved = influence(Probe(subject), inputs, key_part(inputs), tokens=(1,))[0] > NOISE
    return bool(moved[:, 1].all())


def _pattern(found: Map) -> CheckResult:
    rows = found.found.sum(-1)
    reason = f"outputs depend on {int(rows.min())} to {int(rows.max())} of {found.length} tokens, a pattern that stays"
    evidence = {"tokens": found.length, "pairs_missing": int(found.missing.sum()), "pattern": _drawing(found.found)}
    return CheckResult("reach", "by_design", f"{reason} the same when the sequence grows", evidence)


def _drawing(found: Tensor) -> list[str]:
    return ["".join("x" if cell else "." for cell in row) for row in found.tolist()]
