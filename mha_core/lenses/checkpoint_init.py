"""What a matrix resembles: which initialisation would have given such numbers, or that none would.

A fresh matrix has independent numbers of one distribution. So a scheme fits only where everything that follows from
that is true within sampling error: the std, the kurtosis, the largest value, the mean, how equal the norms of rows and
of columns are, and the largest singular value (Johnstone 2001: it lies at the edge that independent numbers give).
Every limit below is a number of standard errors, so that a fresh matrix is hardly ever taken for a trained one.
Schemes that fit are ranked by their likelihood; those within a factor of 100 cannot be told apart.

Letters: n numbers of the matrix, s std of the scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mha_core.lenses.checkpoint_stats import MatrixStats, Moments

Distribution = Literal["normal", "uniform", "truncated normal"]
Kind = Literal["zeros", "constant", "identity", "orthogonal", "fresh", "none", "unclear"]
LIMIT = 5.0  # standard errors
EDGE_LIMIT = 8.0  # of the largest singular value, in Tracy-Widom's units, whose right tail is long
RARE = 1e-6  # probability of a largest value so large, or so small
LEAST_NUMBERS = 64  # fewer say nothing about a distribution
LEAST_SIDE = 8  # shorter sides have no edge of the spectrum
SAME_LIKELIHOOD = math.log(100.0)
USUAL_STD = 0.02
CUT = 2.0  # std at which the truncated normal is cut
_INSIDE = math.erf(CUT / math.sqrt(2))
_CUT_DENSITY = CUT * 2 * math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi) / _INSIDE
CUT_SHRINK = math.sqrt(1 - _CUT_DENSITY)  # std of the cut normal over that of the whole one
EXACT = 1e-5


def _cut_moment(order: int) -> float:
    """Moment of a normal cut at CUT std, by parts: M(k) = (k - 1) M(k - 2) - CUT**(k - 1) density."""
    if order == 0:
        return 1.0
    return (order - 1) * _cut_moment(order - 2) - CUT ** (order - 2) * _CUT_DENSITY


# Fourth, sixth and eighth moment of each distribution at unit variance.
MOMENTS: dict[Distribution, tuple[float, float, float]] = {
    "normal": (3.0, 15.0, 105.0),
    "uniform": (9 / 5, 27 / 7, 9.0),
    "truncated normal": (
        _cut_moment(4) / CUT_SHRINK**4,
        _cut_moment(6) / CUT_SHRINK**6,
        _cut_moment(8) / CUT_SHRINK**8,
    ),
}
# scheme -> its distribution and its std for (fan_in, fan_out)
STD_BY_FANS: dict[str, tuple[Distribution, float, float, float]] = {  # std = root(a / (b fan_in + c fan_out))
    "xavier_uniform": ("uniform", 2, 1, 1),
    "xavier_normal": ("normal", 2, 1, 1),
    "kaiming_uniform": ("uniform", 2, 1, 0),
    "kaiming_normal": ("normal", 2, 1, 0),
    "torch_default": ("uniform", 1, 3, 0),
    "lecun_normal": ("normal", 1, 1, 0),
}
WORDS = {
    "xavier_uniform": "Xavier uniform",
    "xavier_normal": "Xavier normal",
    "kaiming_uniform": "Kaiming uniform",
    "kaiming_normal": "Kaiming normal",
    "torch_default": "torch's default, uniform within 1/√fan_in",
    "lecun_normal": "LeCun normal",
}


@dataclass(frozen=True)
class Candidate:
    """One scheme at this matrix's sizes: its words, distribution and std; `free` where the std is the matrix's own."""

    words: str
    distribution: Distribution
    std: float
    free: bool = False


@dataclass(frozen=True)
class Fit:
    """How well one candidate fits.

    Attributes:
        words: the scheme. distribution: of its numbers. free: whether its std was taken from the matrix.
        expected_std: the std it gives. std_ratio: measured over expected.
        errors: standard errors between the two. fits: whether nothing speaks against it.
        against: what speaks against it, in words; empty where it fits.
        log_likelihood: of the numbers, minus half ln n where the std was taken from them; -inf where impossible.
    """

    words: str
    distribution: Distribution
    free: bool
    expected_std: float
    std_ratio: float
    errors: float
    fits: bool
    against: str
    log_likelihood: float


@dataclass(frozen=True)
class Resemblance:
    """What a matrix looks like: the kind, one sentence, every candidate (best first), and what makes it not fresh."""

    kind: Kind
    sentence: str
    fits: tuple[Fit, ...] = ()
    reasons: tuple[str, ...] = ()


def candidates(rows: int, columns: int, packed_rows: int | None = None, depth: int | None = None) -> list[Candidate]:
    """List the schemes at the sizes of a matrix (rows, columns) = (fan_out, fan_in).

    Args:
        packed_rows: rows of the fused matrix it is, or may have been, cut from.
        depth: number of layers of the model: GPT-2 divides the std of output projections by √(2·depth).
    """
    found = []
    fans = {"": rows} | ({f" on a packed ({packed_rows}, {columns}) matrix": packed_rows} if packed_rows else {})
    for scheme, (distribution, a, b, c) in STD_BY_FANS.items():
        for where, fan_out in fans.items():
            if c or not where:
                std = math.sqrt(a / (b * columns + c * fan_out))
                found.append(Candidate(WORDS[scheme] + where, distribution, std))
    found.append(Candidate(f"normal with std {USUAL_STD}", "normal", USUAL_STD))
    found.append(Candidate(f"truncated normal with std {USUAL_STD}", "truncated normal", USUAL_STD * CUT_SHRINK))
    if depth:
        words = f"normal with std {USUAL_STD}/√(2·{depth}), as GPT-2's output projections"
        found.append(Candidate(words, "normal", USUAL_STD / math.sqrt(2 * depth)))
    return found


def _free_candidates(moments: Moments, precision: float) -> list[Candidate]:
    std = moments.rms
    bound = moments.largest * (1 + max(1 / moments.count, precision))
    return [
        Candidate(f"normal with std {std:.3g}", "normal", std, True),
        Candidate(f"uniform within ±{bound:.3g}", "uniform", bound / math.sqrt(3), True),
        Candidate(f"truncated normal with std {bound / CUT:.3g}", "truncated normal", bound / CUT * CUT_SHRINK, True),
    ]


def _kurtosis_error(distribution: Distribution, count: int) -> float:
    """Standard error of the sample kurtosis, by the delta method: √(24/n) for a normal."""
    four, six, eight = MOMENTS[distribution]
    return math.sqrt(((eight - four**2) - 4 * four * (six - four) + 4 * four**2 * (four - 1)) / count)


def _tail(candidate: Candidate, moments: Moments, precision: float) -> str:
    """Say what the largest value has against a candidate; empty where nothing."""
    largest = moments.largest / candidate.std
    short = f"no value beyond {largest:.3g} std"
    if candidate.distribution == "normal":
        if moments.count * math.erfc(largest / math.sqrt(2)) < RARE:
            return f"the largest value is {largest:.3g} std"
        return short if _is_rare(math.erf(largest / math.sqrt(2)), moments.count) else ""
    bound = math.sqrt(3) if candidate.distribution == "uniform" else CUT / CUT_SHRINK
    if largest > bound * (1 + precision + 1e-6):
        return f"a value of {largest:.3g} std lies outside of ±{bound:.3g}"
    share = min(1.0, largest * (1 + precision) / bound)
    if candidate.distribution == "truncated normal":
        share = math.erf(share * CUT / math.sqrt(2)) / _INSIDE
    return short if _is_rare(share, moments.count) else ""


def _is_rare(share: float, count: int) -> bool:
    """Whether `count` draws hardly ever all fall where one does with probability `share`."""
    return share <= 0 or count * math.log(share) < math.log(RARE)


def _log_likelihood(candidate: Candidate, moments: Moments) -> float:
    count, std = moments.count, candidate.std
    if candidate.distribution == "uniform":
        return -count * math.log(2 * math.sqrt(3) * std)
    whole = std if candidate.distribution == "normal" else std / CUT_SHRINK
    inside = 1.0 if candidate.distribution == "normal" else _INSIDE
    squares = count * moments.rms**2
    return -count * math.log(whole * math.sqrt(2 * math.pi) * inside) - squares / (2 * whole**2)


def _fit(candidate: Candidate, stats: MatrixStats, precision: float) -> Fit:
    moments = stats.moments
    count, four = moments.count, MOMENTS[candidate.distribution][0]
    known = precision if candidate.free else 0.0  # the largest value, from which a bound is taken, was rounded
    errors = max(0.0, abs(moments.rms / candidate.std - 1) - known) / math.sqrt((four - 1) / (4 * count))
    against = f"std {moments.rms:.4g} instead of {candidate.std:.4g}" if errors > LIMIT else ""
    if not against:
        off = (moments.kurtosis - four) / _kurtosis_error(candidate.distribution, count)
        skew = LIMIT * (1 + 30 / math.sqrt(count))  # a small sample's kurtosis has a long right tail
        against = f"kurtosis {moments.kurtosis:.3g} instead of {four:.3g}" if not -LIMIT < off < skew else ""
    against = against or _tail(candidate, moments, precision)
    likelihood = _log_likelihood(candidate, moments) - (0.5 * math.log(count) if candidate.free else 0.0)
    return Fit(
        candidate.words,
        candidate.distribution,
        candidate.free,
        candidate.std,
        moments.rms / candidate.std,
        errors,
        not against,
        against,
        likelihood,
    )


def dependence(stats: MatrixStats) -> tuple[str, ...]:
    """Say what shows that the numbers of a matrix are not independent draws of one distribution.

    A sum of r squared deviations of row norms has mean r and variance r (2 + 12 / columns) for normal numbers.
    """
    moments, found = stats.moments, []
    if abs(moments.mean) > LIMIT * moments.std / math.sqrt(moments.count):
        found.append(f"the mean {moments.mean:.3g} is not 0")
    for words, lines, terms, spread in (
        ("rows", stats.rows, stats.columns, stats.row_spread),
        ("columns", stats.columns, stats.rows, stats.column_spread),
    ):
        if lines > 1 and not math.isnan(spread):
            off = (spread - 1) * math.sqrt(lines / (2 + 12 / terms))
            skew = LIMIT * (1 + 6 / math.sqrt(lines))
            if not -LIMIT < off < skew:
                found.append(f"the norms of {words} spread {math.sqrt(spread):.3g} times as much as by chance")
    if stats.spectrum is not None and min(stats.rows, stats.columns) >= LEAST_SIDE:
        a, b = math.sqrt(stats.rows), math.sqrt(stats.columns)
        edge, width = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)  # Johnstone 2001, theorem 1.1
        ratio = stats.spectrum.largest / moments.rms
        exact = stats.spectrum.smallest is not None
        below = EDGE_LIMIT if exact else math.inf  # an estimate from below cannot be too small
        if not -below < (ratio**2 - edge) / width < EDGE_LIMIT:
            found.append(f"the largest singular value is {ratio / (a + b):.3g} times that of independent numbers")
    return tuple(found)


def _exact_kind(matrix: Tensor, stats: MatrixStats, precision: float) -> Resemblance | None:
    """Recognise zeros, constants, the identity and orthogonal matrices."""
    moments = stats.moments
    if moments.largest == 0:
        design = ", or zero-initialised by design, as an output projection may be" if stats.role == "out" else ""
        return Resemblance("zeros", f"all zeros: never trained{design}")
    if moments.minimum == moments.maximum:
        return Resemblance("constant", f"every value is {moments.maximum:.4g}: a constant, which no training leaves")
    shorter = min(stats.rows, stats.columns)
    is_sparse = shorter == round(moments.count * (1 - moments.zero_share))
    if is_sparse and torch.equal(matrix.to(torch.float64), torch.eye(stats.rows, stats.columns, dtype=torch.float64)):
        return Resemblance("identity", "the identity: it copies its input")
    values = stats.spectrum.values if stats.spectrum is not None else ()
    if shorter >= 2 and len(values) == shorter and values[0] - values[-1] < (EXACT + 2 * precision) * values[0]:
        gain = "" if abs(values[0] - 1) < EXACT + 2 * precision else f" with gain {values[0]:.4g}"
        return Resemblance("orthogonal", f"orthogonal{gain}: all singular values are equal")
    return None


def _join(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def resemble(
    matrix: Tensor, stats: MatrixStats, packed_rows: int | None = None, depth: int | None = None
) -> Resemblance:
    """Say what a matrix (rows, columns) = (fan_out, fan_in) looks like, as stored; the rest as in `candidates`."""
    moments = stats.moments
    if moments.count < moments.size or not moments.count:
        return Resemblance("unclear", "numbers are missing (NaN or Inf), so nothing can be said")
    precision = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else 0.0
    exact = _exact_kind(matrix, stats, precision)
    if exact is not None:
        return exact
    tried = [
        _fit(c, stats, precision)
        for c in (*candidates(stats.rows, stats.columns, packed_rows, depth), *_free_candidates(moments, precision))
    ]
    fitting = sorted((fit for fit in tried if fit.fits), key=lambda fit: -fit.log_likelihood)
    ranked = (*fitting, *sorted((fit for fit in tried if not fit.fits), key=lambda fit: abs(math.log(fit.std_ratio))))
    if moments.count < LEAST_NUMBERS:
        return Resemblance("unclear", f"{moments.count} numbers are too few to tell a scheme", ranked)
    reasons = dependence(stats)
    if reasons or not fitting:
        reasons = reasons or (
            f"no scheme's distribution: kurtosis {moments.kurtosis:.3g}, the largest value is "
            f"{moments.largest / moments.rms:.3g} std",
        )
        sentence = f"like none of the schemes: trained, most likely; {reasons[0]}"
        return Resemblance("none", sentence, ranked, reasons)
    near = [fit for fit in fitting if fitting[0].log_likelihood - fit.log_likelihood < SAME_LIKELIHOOD]
    known = {fit.distribution for fit in near if not fit.free}
    best = [fit.words for fit in near if not (fit.free and fit.distribution in known)]
    told = best[0] if len(best) == 1 else f"{_join(best[:4])}, which {moments.count:,} numbers cannot tell apart"
    return Resemblance("fresh", f"looks like {told}", ranked)
