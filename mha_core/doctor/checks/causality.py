"""Causality: does the future stay hidden in every mode, with every kind of input size the mask has to withstand?

Each use of the module (training or not, dropout or not, weights wanted or not, a padding mask or not) is asked the
same question: which output moves when one later token is replaced. The uses have to agree with each other and with
what the module says of itself. Inputs scaled up to 1e4 find mask values that scores can beat.

Axes: B batch, S tokens, Sq queries, Sk keys; `map[i, j]` tells whether output i depends on token j.
"""

from __future__ import annotations

from typing import Any

import torch

from mha_core.doctor.causes.mistakes import UNKNOWN, Cause, mask_mistake
from mha_core.doctor.causes.pointing import attention_line, leak_line, mask_line
from mha_core.doctor.probes.causal_uses import BATCH, Seen, Use, all_asked, all_seen, causal_uses, moved_by_each
from mha_core.doctor.probes.influence import NOISE, Probe, influence, key_part, movement, redrawn, replaced
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.probes.weak_fill import fill_note, judge_fill
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import ModuleFailure, Subject

LENGTHS, SCALES = (5, 7, 8, 12), (1e2, 1e3, 1e4)


def check(subject: Subject) -> CheckResult:
    """Test that no output depends on a later token, where the module is meant to be causal."""
    length = usable_lengths(subject, LENGTHS)[0]
    seen = all_seen(subject, length)
    asked = all_asked(subject, length)
    for group in (seen, asked):
        upside = next((one for one in group if _upside_down(one)), None)
        if upside is not None:
            return _upside(subject, upside, length)
    wanted = subject.expects_causal
    if wanted is None and any((one.is_causal and one.sees_others) or one.is_almost_causal for one in seen):
        wanted = True
    if wanted is False:
        return _not_causal(subject, seen, length)
    causal = [*(seen if wanted else []), *asked]
    leaking = next((one for one in causal if not one.is_causal), None)
    if leaking is not None:
        return _leak(subject, leaking, causal, length)
    if causal:
        return _hidden_well(subject, causal, length)
    return _given_mask(subject, length)


def _upside_down(one: Seen) -> bool:
    """Tell whether outputs depend on later tokens and on no earlier one."""
    return bool((one.leak > NOISE).sum() > 1) and not one.sees_others


def _upside(subject: Subject, one: Seen, length: int) -> CheckResult:
    reason = f"outputs depend on later tokens and on no earlier one ({one.use.words}): the triangle is upside down"
    cause, where = _cause(subject, one, length)
    return CheckResult(
        "causality", "fail", reason, _evidence(one, length), cause or "the triangle is upside down", where
    )


def _not_causal(subject: Subject, seen: list[Seen], length: int) -> CheckResult:
    hidden = next((one for one in seen if one.is_causal and one.sees_others), None)
    if hidden is None:
        evidence: dict[str, Any] = {"modes": len(seen), "tokens": length}
        return CheckResult("causality", "pass", "no mode hides the future, and none is meant to", evidence)
    if all(one.is_causal for one in seen):
        reason = "the module hides the future in every mode, although it says that it is not causal"
        return CheckResult("causality", "fail", reason, _evidence(hidden, length))
    open_one = next(one for one in seen if not one.is_causal)
    reason = f"the future is hidden in one mode ({hidden.use.words}) and not in another ({open_one.use.words})"
    evidence = {**_evidence(open_one, length), "mode_without_leak": hidden.use.words}
    cause, where = f"the causal mask is missing in: {open_one.use.words}", _cause(subject, open_one, length)[1]
    return CheckResult("causality", "fail", reason, evidence, cause, where)


def _evidence(one: Seen, length: int, scale: float = 1.0) -> dict[str, Any]:
    leaks = one.leak if bool((one.leak > NOISE).any()) else one.moved
    row, token = divmod(int(leaks.argmax()), leaks.shape[1])
    return {
        "mode": one.use.words,
        "tokens": length,
        "output": row,
        "token": token,
        "relative_change": float(leaks.max()),
        "input_scale": scale,
    }


def _leak(subject: Subject, one: Seen, group: list[Seen], length: int) -> CheckResult:
    """Report an output that moves with a later token."""
    evidence = _evidence(one, length)
    leaks = one.leak > NOISE
    sound = [other.use.words for other in group if other.is_causal]
    evidence["modes_without_leak"], evidence["modes"] = len(sound), len(group)
    reason = (
        f"output {evidence['output']} changes by {evidence['relative_change']:.2g} of its size when the later token "
    )
    reason += f"{evidence['token']} of {length} is replaced ({one.use.words})"
    cause, where = _cause(subject, one, length)
    if sound:
        reason += f"; {len(sound)} of {len(group)} modes hide it"
        cause = cause or f"the causal mask is missing in one path: {one.use.words}"
    elif int(leaks.sum()) == length - 1 and bool(leaks.diagonal(1).all()):
        cause = "off by one: every row sees one token too many"
    elif bool(leaks[0].all() and not leaks[1:].any()):
        cause = "off by one: row 0 may not see itself, sees nothing, and is then spread over all tokens"
    elif not bool((~leaks & torch.ones_like(leaks).triu(1)).any()):
        cause = cause or "no causal mask is applied"
    return CheckResult("causality", "fail", reason, evidence, cause, where)


def _cause(subject: Subject, one: Seen, length: int) -> Cause:
    probe, inputs = Probe(subject, one.use.mode, one.use.masks), subject.inputs(BATCH, length)
    first = max(int(one.leak.argmax()) % length, 1)
    try:
        look = probe.look(inputs)
        cause, where = mask_mistake(look)
        later = replaced(inputs, redrawn(inputs), key_part(inputs), 0, slice(first, None))
        return cause, where or leak_line(look, probe.look(later), length, first) or attention_line(look)
    except ModuleFailure:
        return UNKNOWN


def _hidden_well(subject: Subject, group: list[Seen], length: int) -> CheckResult:
    """The future is hidden at normal inputs: try large ones, the diagonal, other lengths and crossing."""
    for one in group:
        scaled = _scaled(subject, one, length)
        if scaled is not None:
            return scaled
    for finding in (_blind_to_itself(subject, group[0], length), _other_lengths(subject, group[0])):
        if finding is not None:
            return finding
    evidence: dict[str, Any] = {"modes": len(group), "tokens": length, "largest_input_scale": SCALES[-1]}
    evidence |= _fill_note(subject, group[0], length)
    if subject.convention.whole_masks:
        reason = "by itself no output depends on a later token; a mask given replaces the causal one and has to hold it"
        return CheckResult("causality", "by_design", reason, evidence)
    aligned = _alignment(subject, group[0])
    if aligned:
        evidence["alignment_4_queries_7_keys"] = aligned
    reason = f"no output depends on a later token, in {len(group)} modes and with inputs scaled up to {SCALES[-1]:.0e}"
    return CheckResult("causality", "pass", reason, evidence)


def _scaled(subject: Subject, one: Seen, length: int) -> CheckResult | None:
    """Find mask values that scores can beat: replace the later half of scaled inputs."""
    probe = Probe(subject, one.use.mode, one.use.masks)
    for scale in SCALES:
        inputs = subject.inputs(BATCH, length, scale=scale)
        before, other = probe.output(inputs), redrawn(inputs)
        for first in (1, length // 2 + 1):
            later = replaced(inputs, other, key_part(inputs), 0, slice(first, None))
            moved = movement(before, probe.output(later))[0, :first]
            if float(moved.max()) > NOISE and bool(before[0, :first].isfinite().all()):
                evidence = {**_evidence(one, length, scale), "output": int(moved.argmax()), "token": first}
                evidence["relative_change"] = float(moved.max())
                finding = judge_fill("causality", probe.look(inputs), scale, one.use.words, evidence)
                if finding is not None:
                    return finding
    return None


def _blind_to_itself(subject: Subject, one: Seen, length: int) -> CheckResult | None:
    """Find a row that may not see itself, in the weights of a watched call."""
    probe = Probe(subject, one.use.mode, one.use.masks)
    look = probe.look(subject.inputs(BATCH, length))
    if len(look.cores) != 1 or look.cores[0].weights.shape[-2:] != (length, length):
        return None
    weights = look.cores[0].weights.detach()
    own = weights.diagonal(dim1=-2, dim2=-1).reshape(-1, length)
    if bool((own.nan_to_num() != 0).any()):
        return None
    where = mask_mistake(look)[1] or mask_line(look)
    reason = f"no row may see itself: the weight of every one of {length} tokens on itself is 0 ({one.use.words})"
    evidence = {"mode": one.use.words, "tokens": length, "weight_on_itself": 0.0}
    return CheckResult("causality", "fail", reason, evidence, "off by one: the diagonal is hidden too", where)


def _other_lengths(subject: Subject, one: Seen) -> CheckResult | None:
    """Repeat with other numbers of tokens: a mask made for the longest may be cut wrongly."""
    for length in usable_lengths(subject, LENGTHS)[1:3]:
        if one.use.masks.keys() & {"keep_keys", "keep_pairs"}:
            continue
        again = Seen(one.use, moved_by_each(Probe(subject, one.use.mode, one.use.masks), subject.inputs(BATCH, length)))
        if not again.is_causal:
            return _leak(subject, again, [again], length)
    return None


def _alignment(subject: Subject, one: Seen) -> str:
    """Say how a causal module lines up 4 queries with 7 keys, "" where it cannot cross."""
    if not subject.can_cross or one.use.masks.keys() & {"keep_keys", "keep_pairs"}:
        return ""
    try:
        probe = Probe(subject, one.use.mode, one.use.masks)
        seen = influence(probe, subject.inputs(BATCH, 4, 7), "memory")[:, 0].T > NOISE  # (4, 7)
    except ModuleFailure:
        return ""
    ones = torch.ones(4, 7, dtype=torch.bool)
    if bool((seen == ones.tril()).all()):
        return "top-left: the first query sees the first key"
    if bool((seen == ones.tril(3)).all()):
        return "bottom-right: the last query sees the last key"
    return "none: every query sees every key" if bool(seen.all()) else "another"


def _given_mask(subject: Subject, length: int) -> CheckResult:
    """The module is not causal by itself: a causal mask given has to hide the future."""
    keep = torch.ones(length, length, dtype=torch.bool).tril()
    if not (subject.pair_mask and subject.accepts(keep_pairs=keep)):
        reason = "tokens see each other both ways in every mode, and nothing says that the module should be causal"
        return CheckResult("causality", "not_applicable", reason, {"tokens": length})
    group: list[Seen] = []
    failure: ModuleFailure | None = None
    for use in causal_uses(subject, length):
        if use.masks:
            continue
        given = Use(f"{use.words}, with a causal mask given", use.mode, {"keep_pairs": keep})
        try:
            group.append(
                Seen(given, moved_by_each(Probe(subject, given.mode, given.masks), subject.inputs(BATCH, length)))
            )
        except ModuleFailure as raised:
            failure = failure or raised
    if not group and failure is not None:
        return CheckResult(
            "causality", "fail", f"a causal mask given raises {failure.text}", {"tokens": length}, "", failure.place
        )
    leaking = next((one for one in group if not one.is_causal), None)
    if leaking is not None:
        return _leak(subject, leaking, group, length)
    for one in group:
        scaled = _scaled(subject, one, length)
        if scaled is not None:
            return scaled
    reason = f"a causal mask given hides the future in {len(group)} modes; by itself the module is not causal"
    evidence = {"modes": len(group), "tokens": length, **_fill_note(subject, group[0], length)}
    return CheckResult("causality", "pass", reason, evidence)


def _fill_note(subject: Subject, one: Seen, length: int) -> dict[str, Any]:
    return fill_note(Probe(subject, one.use.mode, one.use.masks).look(subject.inputs(BATCH, length)))
