"""By which factor are the scores scaled, and is it the same in every path through the module?

The factor is read from the operations of each call, so that scaling q alone, both by d^-1/4, or the product are one and
the same. Axes: B batch, H heads, Sq queries, Sk keys, D head_dim.
"""

from __future__ import annotations

import math
import re
from typing import Any

from mha_core.doctor.probes.scale_factor import Meaning, meaning, near, rows_have_one_length, saturation
from mha_core.doctor.probes.uses import Sight, Use, look, probe_sizes, sights, takes_length, uses
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Subject
from mha_core.doctor.traces.cores import Core

_ORDER = ("fail", "warn", "by_design", "pass")
_TEMPERATURES = re.compile(r"temperature|multiplier|pre_attn_scal|logit_scale|\btau\b|sharpness", re.IGNORECASE)


def _place(core: Core) -> Place | None:
    places = [place for number, place in core.factors if place is not None and not near(number, 1.0)]
    return places[-1] if places else core.scores_place


def _parts(core: Core) -> int:
    return sum(not near(number, 1.0) for number, _ in core.factors)


def _meaning(subject: Subject, core: Core, batch: int) -> Meaning:
    assert core.factor is not None
    head_dim = core.q.shape[-1]
    sizes = {"embed_dim": subject.embed_dim}
    if subject.num_heads:
        sizes["all heads together"] = subject.num_heads * head_dim
        sizes["the number of heads"] = subject.num_heads
    sizes |= {"the number of keys": core.k.shape[-2], "the batch size": batch}
    return meaning(core.factor, _parts(core), head_dim, subject.num_heads, sizes)


def _no_scale(subject: Subject, core: Core, words: str) -> CheckResult:
    """Judge unscaled scores: fine as in T5, else a danger measured by how far softmax saturates."""
    head_dim = core.q.shape[-1]
    ratio = float(core.q.detach().std() / core.k.detach().std().clamp_min(1e-12))
    documented = f"{type(subject.module).__name__} {type(subject.module).__doc__ or ''}"
    signs = [sign for sign in subject.position_signs if "relative" in sign.lower() or "bias" in sign.lower()]
    if re.search(r"T5", documented):
        signs.append("T5 in the name")
    if head_dim >= 4 and 1 / 1.5 < ratio * head_dim**0.5 < 1.5:
        signs.append(f"queries {ratio:.3g} times as large as keys, about 1/sqrt(head_dim)")
    evidence: dict[str, Any] = {"factor": core.factor, "head_dim": head_dim, "query_std_over_key_std": round(ratio, 4)}
    if signs:
        return CheckResult("scale", "by_design", f"{words}: as in T5 ({signs[0]})", evidence)
    if subject.is_library:
        return CheckResult("scale", "by_design", f"{words}: a library's choice", evidence)
    keys = 64 if takes_length(subject, 64) else core.k.shape[-2]
    long = look(subject, subject.inputs(2, keys), Use("eval"))
    scores = (long.cores or (core,))[0].scores
    largest, derivative = saturation(scores)
    usual_largest, usual_derivative = saturation(scores * head_dim**-0.5)
    evidence |= {
        "mean_largest_weight": round(largest, 4),
        "mean_largest_weight_if_scaled": round(usual_largest, 4),
        "softmax_derivative_norm": round(derivative, 4),
        "softmax_derivative_norm_if_scaled": round(usual_derivative, 4),
    }
    reason = (
        f"{words}: over {keys} keys the largest weight is {largest:.2f} on average (scaled: {usual_largest:.2f}) and "
        f"the softmax derivative {derivative:.2g} (scaled: {usual_derivative:.2g})"
    )
    return CheckResult("scale", "warn", reason, evidence, "the scale 1/sqrt(head_dim) is missing", core.scores_place)


def _depends_on_length(subject: Subject, core: Core, length: int) -> bool:
    if not takes_length(subject, length + 6):
        return False
    other = look(subject, subject.inputs(2, length + 6), Use("eval")).cores
    return any(c.factor is None or (core.factor is not None and not near(c.factor, core.factor)) for c in other)


def _judge(subject: Subject, core: Core, batch: int) -> CheckResult:
    """Judge one attention computation."""
    evidence: dict[str, Any] = {"factor": core.factor, "head_dim": core.q.shape[-1]}
    normalised = rows_have_one_length(core.q) and rows_have_one_length(core.k)
    if core.factor is None:
        kind = "queries and keys are normalised, and the" if normalised else "the"
        evidence["score_std"] = _spread(core)
        reason = f"{kind} scale is not one fixed number: it is learned, or differs between heads or tokens"
        return CheckResult("scale", "by_design", reason, evidence)
    found = _meaning(subject, core, batch)
    if found.status == "pass":
        return CheckResult("scale", "pass", found.words, evidence)
    if normalised:
        reason = f"queries and keys are normalised (cosine attention or QK-norm), with the factor {core.factor:.4g}"
        return CheckResult("scale", "by_design", reason, evidence)
    if found.status == "unscaled":
        return _no_scale(subject, core, found.words)
    if subject.is_library:
        return CheckResult("scale", "by_design", f"{found.words}: a library's choice", evidence)
    if found.status != "unknown":
        return CheckResult("scale", found.status, found.words, evidence, found.cause, _place(core))
    return _unknown(subject, core, found, evidence)


def _unknown(subject: Subject, core: Core, found: Meaning, evidence: dict[str, Any]) -> CheckResult:
    """Judge a factor that no size explains."""
    assert core.factor is not None
    terms = (core.q.shape[-1] * core.factor**2) ** -1  # DeBERTa: 1/sqrt(D * number of terms)
    if subject.position_signs and any(math.isclose(terms, n, rel_tol=1e-2) for n in (2, 3)):
        return CheckResult("scale", "by_design", f"{found.words}: {round(terms)} terms share the scale", evidence)
    line = _place(core)
    names = " ".join([line.code if line else "", *vars(subject.module)])
    if _TEMPERATURES.search(names):
        return CheckResult("scale", "by_design", f"{found.words}: a temperature of its own", evidence)
    if _depends_on_length(subject, core, core.q.shape[-2]):
        return CheckResult("scale", "by_design", f"{found.words}; it changes with the length", evidence)
    return CheckResult("scale", "warn", found.words, evidence, found.cause or "an unusual constant scale", line)


def _spread(core: Core) -> float:
    scores = core.scores.detach().double()
    seen = scores[scores > -1e4]
    return round(float(seen.std()), 4) if seen.numel() > 1 else 0.0


def _disagreement(seen: list[Sight]) -> CheckResult | None:
    """Compare the paths: the same factors have to appear in all of them."""
    by_path = {s.use.words: tuple(sorted(c.factor for c in s.cores if c.factor is not None)) for s in seen}
    known = {words: factors for words, factors in by_path.items() if factors}
    reference = next(iter(known.values()), ())
    for words, factors in known.items():
        differs = len(factors) != len(reference) or any(
            not near(a, b) for a, b in zip(factors, reference, strict=False)
        )
        if not differs or {round(f, 6) for f in factors} == {round(f, 6) for f in reference}:
            continue
        first = next(iter(known))
        spelled = {w: ", ".join(f"{f:.4g}" for f in fs) for w, fs in known.items()}
        reason = f"the paths scale differently: {spelled[first]} in ({first}), but {spelled[words]} in ({words})"
        core = next(c for s in seen if s.use.words == words for c in s.cores if c.factor is not None)
        other = next(c for s in seen if s.use.words == first for c in s.cores if c.factor is not None)
        odd = core if abs(_log_error(core)) >= abs(_log_error(other)) else other
        return CheckResult(
            "scale", "fail", reason, {"factors": spelled}, "one path lacks the scale of the others", _place(odd)
        )
    return None


def _log_error(core: Core) -> float:
    """How far a factor is from 1/sqrt(D), on a logarithmic scale."""
    factor = core.factor or 1.0
    return math.log(abs(factor) * core.q.shape[-1] ** 0.5) if factor else math.inf


def check(subject: Subject) -> CheckResult:
    """Ask for the scale of the scores in every path."""
    batch, length = probe_sizes(subject)
    seen = sights(subject, subject.inputs(batch, length), uses(subject, batch, length))
    found = [core for sight in seen for core in sight.cores]
    if not found:
        return CheckResult("scale", "not_applicable", "no softmax of q kᵀ was seen among the module's operations")
    disagreement = _disagreement(seen)
    if disagreement is not None:
        return disagreement
    first = next(sight.cores for sight in seen if sight.cores)
    results = [_judge(subject, core, batch) for core in first]
    return min(results, key=lambda result: _ORDER.index(result.status))
