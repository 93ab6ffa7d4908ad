"""Padding: what a mask hides must not move an output, what it leaves must, and padding added must change nothing.

Samples have different numbers of hidden tokens, at the end and at the start. The content of hidden tokens is replaced,
also by huge numbers; visible tokens are replaced to see that they are not the hidden ones; and each padded sample is
compared with the same sample without padding. Rows whose own token is padding are nobody's business.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import (
    first_named,
    mask_finding,
    mask_mistake,
    mixes_batch_in_training,
    split_mistake,
)
from mha_core.doctor.causes.pointing import mask_line
from mha_core.doctor.probes import padded
from mha_core.doctor.probes.equal_values import is_own_map
from mha_core.doctor.probes.influence import NOISE, ROUNDING, Probe, key_part, mapped, movement
from mha_core.doctor.probes.lengths import is_deliberate
from mha_core.doctor.probes.mask_agreement import masks_disagree
from mha_core.doctor.probes.padded import BATCH, Case
from mha_core.doctor.probes.weak_fill import fill_note, judge_fill
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

HUGE = 1e4
MODES = {
    "evaluation": Mode(dropout=0.0),
    "evaluation, weights wanted": Mode(weights=True, dropout=0.0),
    "training without dropout": Mode(training=True, dropout=0.0),
    "training without dropout, weights wanted": Mode(training=True, weights=True, dropout=0.0),
    "training as built": Mode(training=True),
}


def check(subject: Subject) -> CheckResult:
    """Test that a mask over keys hides what it should and nothing else."""
    cases = padded.padded_cases(subject)
    if not cases:
        reason = "no argument of forward takes a mask that hides keys"
        return CheckResult("padding", "not_applicable", reason)
    for case in cases:
        for words, mode in MODES.items():
            if mode.training and mixes_batch_in_training(subject):
                continue
            try:
                finding = _judge(subject, case, words, mode)
            except ModuleFailure as failure:
                finding = _crash(subject, case, words, failure)
            if finding is not None:
                return finding
    joined = masks_disagree(subject)
    if joined is not None:
        return joined
    compared = sum(padded.can_compare(subject, case) for case in cases)
    evidence = {
        "cases": [case.words for case in cases],
        "modes": len(MODES),
        "cases_compared_without_padding": compared,
        "nan_in_hidden_tokens_spreads": padded.nan_spreads(subject, cases[0]),
        **fill_note(Probe(subject, Mode(), cases[0].masks).look(cases[0].inputs)),
    }
    reason = f"hidden tokens move nothing, even when scaled by {HUGE:.0e}, and visible ones do, in {len(MODES)} modes"
    return CheckResult("padding", "pass", reason, evidence)


def _crash(subject: Subject, case: Case, words: str, failure: ModuleFailure) -> CheckResult | None:
    if is_deliberate(failure) and subject.is_library:
        return None
    evidence = {"case": case.words, "mode": words, "error": failure.text}
    return CheckResult("padding", "fail", f"{case.words} raises {failure.text} ({words})", evidence, "", failure.place)


def _judge(subject: Subject, case: Case, words: str, mode: Mode) -> CheckResult | None:
    probe = Probe(subject, mode, case.masks)
    before = probe.output(case.inputs)
    told = f"{words}, {case.words}"
    if (broken := _broken(subject, probe, case, before, told)) is not None:
        return broken
    effect = movement(before, probe.under(padded.nothing_hidden(subject, case)).output(case.inputs))
    content = _hidden_content(subject, probe, case, before, told)
    visible = _visible(subject, probe, case, before)
    if content is not None:
        if not visible:
            return _swapped(probe, case, told)
        if not bool((effect > NOISE).any()):
            return _no_effect(probe, case, told)
        return content
    if not visible:
        return _swapped(probe, case, told, leak=False)
    if not bool((effect > NOISE).any()):
        return _no_effect(probe, case, told)
    if mode.dropout is None:  # other shapes draw other noise
        return None
    for finding in (_heads(probe, case, told), _unpadded(subject, probe, case, before, told)):
        if finding is not None:
            return finding
    return _large_scores(probe, case, told)


def _broken(subject: Subject, probe: Probe, case: Case, before: Tensor, words: str) -> CheckResult | None:
    """Find rows with visible keys that become NaN or infinite under the mask."""
    bad = case.rows & ~before.isfinite().flatten(2).all(-1)
    usual = probe.under({}).output(case.inputs)
    if not bool(bad.any()) or not bool(usual.isfinite().all()):
        return None
    sample, row = (int(i) for i in bad.nonzero()[0])
    cause, where = mask_finding(probe.look(case.inputs))
    reason = (
        f"output {row} of sample {sample} is not finite as soon as a mask is given, although keys are visible ({words})"
    )
    told = {"mode": words, "sample": sample, "output": row}
    return CheckResult("padding", "fail", reason, told, cause or "0 times infinity is NaN", where)


def _hidden_content(subject: Subject, probe: Probe, case: Case, before: Tensor, words: str) -> CheckResult | None:
    """Replace what is hidden, by tokens of usual size and by huge ones."""
    for scale in (1.0, HUGE):
        moved = movement(before, probe.output(padded.with_other_tokens(case.inputs, ~case.keep, scale)))
        leaks = torch.where(case.rows, moved, 0.0)
        if float(leaks.max()) <= NOISE:
            continue
        sample, row = divmod(int(leaks.argmax()), leaks.shape[1])
        evidence = {
            "mode": words,
            "sample": sample,
            "output": row,
            "relative_change": float(leaks.max()),
            "hidden_tokens_scale": scale,
            "hidden_tokens_of_sample": [int(i) for i in (~case.keep[sample]).nonzero()[:, 0]],
        }
        look = probe.look(padded.with_other_tokens(case.inputs, ~case.keep, scale))
        if scale > 1.0:
            weak = judge_fill("padding", look, scale**0.5, words, evidence)  # as if both sides grew by the root
            if weak is not None:
                return weak
            continue
        if _carries_neighbours(subject, leaks, case):
            reason = "a convolution before attention carries the content of hidden tokens into their neighbours"
            return CheckResult("padding", "by_design", reason, evidence)
        reason = (
            f"output {row} of sample {sample} changes by {float(leaks.max()):.2g} of its size when hidden tokens are "
        )
        split = split_mistake(subject, look, BATCH, case.inputs.query.shape[1], case.inputs.key.shape[1])
        cause, where = first_named(mask_mistake(look), split)
        named, line = cause or _head_cause(probe, case), where or mask_line(look)
        return CheckResult("padding", "fail", f"{reason}replaced ({words})", evidence, named, line)
    return None


def _carries_neighbours(subject: Subject, leaks: Tensor, case: Case) -> bool:
    return bool({"conv", "recurrent"} & set(subject.position_signs)) and bool((leaks <= NOISE)[case.rows].any())


def _visible(subject: Subject, probe: Probe, case: Case, before: Tensor) -> bool:
    """Tell whether replacing a visible token moves another visible row, in every padded sample."""
    for sample in range(2):
        places = case.keep[sample].nonzero()[:, 0]
        token = int(places[0])
        where = torch.zeros_like(case.keep)
        where[sample, token] = True
        moved = movement(before, probe.output(padded.with_other_tokens(case.inputs, where)))[sample]
        rows = case.rows[sample].clone()
        if key_part(case.inputs) == "tokens":
            rows[token] = False
        if not bool((moved[rows] > NOISE).any()):
            return False
    return True


def _swapped(probe: Probe, case: Case, words: str, leak: bool = True) -> CheckResult:
    cause, where = mask_finding(probe.look(case.inputs))
    reason = "visible tokens move no output" + (
        ", hidden ones do: the mask is read the wrong way round" if leak else ""
    )
    evidence = {"mode": words, "visible_tokens_of_sample_0": [int(i) for i in case.keep[0].nonzero()[:, 0]]}
    return CheckResult("padding", "fail", f"{reason} ({words})", evidence, cause or "True and False are swapped", where)


def _no_effect(probe: Probe, case: Case, words: str) -> CheckResult:
    named, where = mask_finding(probe.look(case.inputs))
    reason = f"the mask has no effect: outputs are the same with hidden keys and with none ({words})"
    return CheckResult("padding", "fail", reason, {"mode": words}, named or "the mask is not used", where)


def _head_weights(probe: Probe, case: Case) -> Tensor | None:
    """Give the weights of a watched call as (B, heads, Sq, Sk), None where they cannot be read so."""
    look = probe.look(case.inputs)
    if len(look.cores) != 1:
        return None
    weights = look.cores[0].used_weights.detach()
    q_len, k_len = case.inputs.query.shape[1], case.inputs.key.shape[1]
    if weights.shape[-2:] != (q_len, k_len) or weights[..., 0, 0].numel() % BATCH:
        return None
    flat = weights.reshape(-1, q_len, k_len)
    return flat.reshape(BATCH, -1, q_len, k_len) if weights.shape[0] in (BATCH, flat.shape[0]) else None


def _head_cause(probe: Probe, case: Case) -> str:
    """Name a mask whose samples and heads are in the wrong order: some heads hide, others do not."""
    weights = _head_weights(probe, case)
    if weights is None or weights.shape[1] < 2:
        return ""
    hidden = torch.where(case.rows[0][:, None] & ~case.keep[0], weights[0], 0.0)
    leaking = hidden.abs().amax((-2, -1)) > NOISE
    if bool(leaking.any()) and not bool(leaking.all()):
        return "the mask's order of samples and heads is not the scores': repeat where repeat_interleave is needed"
    return ""


def _heads(probe: Probe, case: Case, words: str) -> CheckResult | None:
    """Find heads that lose a visible key in one sample and keep it in another head."""
    weights = _head_weights(probe, case)
    if weights is None or weights.shape[1] < 2:
        return None
    lost = (weights == 0).all(2) & case.keep[:, None]  # (B, heads, Sk), no query of this head sees a visible key
    some = lost.any(1) & ~lost.all(1)
    if not bool(some.any()) or not bool((_head_zeros(weights)).any()):
        return None
    sample, key = (int(i) for i in some.nonzero()[0])
    head = int(lost[sample, :, key].nonzero()[0, 0])
    reason = f"head {head} of sample {sample} gives visible key {key} no weight while other heads do ({words})"
    cause = "the mask's order of samples and heads is not the scores'"
    where = probe.look(case.inputs).cores[0].mask_place
    return CheckResult("padding", "fail", reason, {"head": head, "sample": sample, "key": key}, cause, where)


def _head_zeros(weights: Tensor) -> Tensor:
    """Heads that hide one key from every query and are no sparse attention: all other weights are above zero."""
    hidden = (weights == 0).all(2, keepdim=True)
    return ((weights > 0) | hidden).all((-2, -1)) & hidden.any((-2, -1))


def _unpadded(subject: Subject, probe: Probe, case: Case, before: Tensor, words: str) -> CheckResult | None:
    """Compare each padded sample with itself without padding and without a mask."""
    if not padded.can_compare(subject, case) or is_own_map(subject, probe.look(case.inputs)):
        return None
    for sample in range(2):
        keep, rows = case.keep[sample], case.rows[sample]
        mine = case.inputs
        query = mine.query[sample : sample + 1, rows]
        if key_part(mine) == "tokens":
            alone = Inputs(query, query, query)
        else:
            key = mine.key[sample : sample + 1, keep]
            alone = Inputs(query, key, key if mine.value is mine.key else mine.value[sample : sample + 1, keep])
        try:
            wanted = probe.under({}).output(alone)
        except ModuleFailure:  # a module made for one length
            return None
        change = movement(wanted, before[sample : sample + 1, rows])
        if float(change.max()) > ROUNDING:
            cause, where = mask_finding(probe.look(mine))
            evidence = {
                "mode": words,
                "sample": sample,
                "relative_change": float(change.max()),
                "padding_tokens": int((~keep).sum()),
            }
            reason = (
                f"sample {sample} with {int((~keep).sum())} hidden tokens differs from the same sample without them "
            )
            return CheckResult(
                "padding", "fail", f"{reason}by {float(change.max()):.2g} of its size ({words})", evidence, cause, where
            )
    return None


def _large_scores(probe: Probe, case: Case, words: str) -> CheckResult | None:
    """Scale queries as well, so that scores of hidden keys beat weak mask values."""
    for scale in (1e2, 1e3, 1e4):
        inputs = mapped(case.inputs, lambda tensor, by=scale: tensor * by)  # type: ignore[misc]
        before = probe.output(inputs)
        after = probe.output(padded.with_other_tokens(inputs, ~case.keep))
        leaks = torch.where(case.rows & before.isfinite().flatten(2).all(-1), movement(before, after), 0.0)
        if float(leaks.max()) > NOISE:
            sample, row = divmod(int(leaks.argmax()), leaks.shape[1])
            evidence = {
                "mode": words,
                "sample": sample,
                "output": row,
                "relative_change": float(leaks.max()),
                "input_scale": scale,
            }
            finding = judge_fill("padding", probe.look(inputs), scale, words, evidence)
            if finding is not None:
                return finding
    return None
