"""Do decoding steps with a key/value cache give the rows of one full pass?

Without a cache, a causal module is asked for the same thing the other way round: the first rows of a longer input are
the rows of the short one. Axes: B batch, S tokens, E width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.probes.uses import Use, answer_of, difference, pair_mask, takes_length
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.tracing import Trace, traced

TOKENS = 9
CLOSE = 1e-3
CUTS = {"token by token": (1,) * TOKENS, "in chunks of 4, 3, 1 and 1": (4, 3, 1, 1)}


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("decode", status, reason, evidence, cause, where)


def _rows(inputs: Inputs, first: int, count: int) -> Inputs:
    """Cut some tokens out of a self-attention input."""
    cut = {id(t): t[:, first : first + count].contiguous() for t in (inputs.query, inputs.key, inputs.value)}
    return Inputs(cut[id(inputs.query)], cut[id(inputs.key)], cut[id(inputs.value)])


def _is_causal(subject: Subject, inputs: Inputs) -> bool:
    """Whether the first rows do not depend on the tokens behind them."""
    full = answer_of(subject, inputs, Use("eval")).output
    short = answer_of(subject, _rows(inputs, 0, TOKENS - 3), Use("eval")).output
    return difference(full[:, : TOKENS - 3], short) < CLOSE


@dataclass(frozen=True)
class _Full:
    """The pass that decoding has to repeat.

    Attributes:
        output: (B, S, E). cores: its attention.
        causal: without a mask of the caller; else only steps of one token can be compared: they see all that came.
        masked: by a mask that was given; without one and not causal, only the last row can be compared.
    """

    output: Tensor
    cores: tuple[Core, ...]
    causal: bool
    masked: bool

    def compares(self, first: int, count: int) -> bool:
        """Whether a step has to give rows of this pass."""
        return self.causal or (count == 1 and (self.masked or first + count == TOKENS))


def _full_pass(subject: Subject, inputs: Inputs) -> _Full:
    causal = _is_causal(subject, inputs)
    keep = pair_mask(TOKENS, TOKENS)
    masked = not causal and subject.pair_mask and subject.accepts(None, keep)
    with traced(subject.files) as trace:
        output = answer_of(subject, inputs, Use("full pass", Mode(), None, keep if masked else None)).output
    return _Full(output, cores(trace), causal, masked)


def _restarts(subject: Subject, inputs: Inputs, core: Core, first: int, count: int) -> bool:
    """Whether the queries of a step are those of the same tokens at the beginning of a sequence."""
    with traced(subject.files) as trace:
        answer_of(subject, _rows(inputs, first, count), Use("eval"))
    alone = cores(trace)
    return bool(alone) and alone[0].q.shape == core.q.shape and difference(alone[0].q, core.q) < CLOSE


def _step_cause(
    subject: Subject, inputs: Inputs, full: tuple[Core, ...], trace: Trace, step_rows: tuple[int, int]
) -> tuple[str, Place | None]:
    """Compare the queries and keys of a step with those of the full pass."""
    found, (first, count) = cores(trace), step_rows
    for step in trace.steps:
        flag = step.kwargs.get("is_causal", step.args[5] if len(step.args) > 5 else False)
        if step.name == "scaled_dot_product_attention" and flag and first:
            return "is_causal=True aligns top-left: with a cache the new query sees only the first keys", step.place
    if not found or not full or found[0].q.shape[-1] != full[0].q.shape[-1]:
        return "", None
    core, whole = found[0], full[0]
    seen = core.k.shape[-2]
    if seen < first + count:
        return f"step at token {first} sees {seen} keys instead of {first + count}: the cache does not grow", None
    if seen > first + count:
        return f"step at token {first} sees {seen} keys instead of {first + count}", None
    positions = "positions or projections differ"
    if _restarts(subject, inputs, core, first, count):
        positions = "positions start at 0 again in each step"
    if core.q.shape[:-2] == whole.q.shape[:-2] and difference(core.q, whole.q[..., first : first + count, :]) > CLOSE:
        return f"the query of a step is not that of the full pass: {positions}", core.scores_place
    if core.k.shape[:-2] == whole.k.shape[:-2] and difference(core.k, whole.k[..., :seen, :]) > CLOSE:
        return f"the cached keys are not those of the full pass: {positions}", core.scores_place
    if core.v.shape[:-2] == whole.v.shape[:-2] and difference(core.v, whole.v[..., :seen, :]) > CLOSE:
        return "the cached values are not those of the full pass", core.values_place
    return "the mask of a step does not fit the cache", core.mask_place or core.softmax_place


def _decode(subject: Subject, inputs: Inputs, cuts: tuple[int, ...], full: _Full) -> CheckResult | None:
    """Run one way of cutting the tokens, and compare every step that can be compared."""
    module, cache, first = subject.fresh(), None, 0
    for count in cuts:
        with traced(subject.files) as trace:
            try:
                answer, cache = subject.call_cached(module, _rows(inputs, first, count), cache, first)
            except ModuleFailure as failure:
                return _crash(failure, first, count)
        expected = full.output[:, first : first + count]
        gap = difference(answer.output, expected)
        if gap > CLOSE and full.compares(first, count):
            cause, place = _step_cause(subject, inputs, full.cores, trace, (first, count))
            evidence = {"first_token": first, "tokens_in_step": count, "relative_difference": gap}
            rows = f"the row of token {first}" if count == 1 else f"the rows of tokens {first} to {first + count - 1}"
            verb = "differs" if count == 1 else "differ"
            reason = f"with the cache, {rows} {verb} from the full pass by {gap:.2g} of the largest output"
            return _result("fail", reason, evidence, cause, place)
        first += count
    return None


def _crash(failure: ModuleFailure, first: int, count: int) -> CheckResult:
    evidence = {"error": failure.text, "first_token": first, "tokens_in_step": count}
    square = count > 1 and first > 0
    cause = f"the causal mask has to be ({count}, {first + count}): the last rows of the full one" if square else ""
    reason = f"a step of {count} token{'s' if count > 1 else ''} after {first} cached ones raises {failure.text}"
    return _result("fail", reason, evidence, cause, failure.place)


def _without_cache(subject: Subject) -> CheckResult:
    """Compare the first rows of a longer input with the short input."""
    inputs = subject.inputs(2, TOKENS, seed=3)
    gaps = []
    full = answer_of(subject, inputs, Use("eval")).output
    for count in (1, 4):
        short = answer_of(subject, _rows(inputs, 0, count), Use("eval")).output
        gaps.append(difference(full[:, :count], short))
    evidence = {"relative_difference": max(gaps), "tokens": [1, 4], "full_tokens": TOKENS}
    if max(gaps) < CLOSE:
        reason = f"no cache was found; the first 1 and 4 rows of {TOKENS} tokens equal the passes over 1 and 4 tokens"
        return _result("pass", reason, evidence)
    if subject.expects_causal:
        reason = (
            f"no cache was found; the first rows of {TOKENS} tokens differ from the passes over 1 and 4 tokens "
            f"by {max(gaps):.2g} of the largest output, so a step by step use would not repeat training"
        )
        return _result("fail", reason, evidence, "early rows depend on later tokens or on the length")
    return _result("not_applicable", "no key/value cache was found and the module is not causal", evidence)


@torch.no_grad()
def check(subject: Subject) -> CheckResult:
    """Ask for the rows of a full pass, step by step."""
    if subject.takes == "context":
        return _result(
            "not_applicable", "the keys come from another sequence: there is nothing to decode step by step", {}
        )
    if not all(takes_length(subject, n) for n in (1, 4, TOKENS)):
        return _result("not_applicable", "the module does not take inputs of 1, 4 and 9 tokens alike", {})
    if not subject.has_cache:
        return _without_cache(subject)
    inputs = subject.inputs(2, TOKENS, seed=3)
    full = _full_pass(subject, inputs)
    for words, cuts in CUTS.items():
        found = _decode(subject, inputs, cuts, full)
        if found is not None and subject.is_library and max(cuts) > 1:
            reason = f"token by token the cache repeats the full pass; {words} it needs the caller's mask"
            return _result("by_design", reason, {"library": subject.name, "difference": found.reason})
        if found is not None:
            return found
    rows = "every row equals" if full.causal or full.masked else "the last row equals"
    reason = f"with the cache, {' and '.join(CUTS)}, {rows} the full pass over {TOKENS} tokens"
    return _result("pass", reason, {"tokens": TOKENS, "cuts": list(CUTS)})
