"""What a person should notice about a run: each finding is a kind, a sentence, and the heads and tokens it concerns.

The thresholds are stated in the sentences. Not here: what to do about broken code (the doctor).

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from mha_core.experiment import Run
from mha_core.lenses.head_stats import HeadStats, counted_rows, head_stats

ONE_HOT = 0.99  # a row whose largest weight is above this has chosen a single key
NEAR_UNIFORM = 0.99  # relative entropy above this is as good as no choice
SAME_HEAD = 1e-6  # largest difference between two maps that counts as identical
PADDING_SHARE = 1e-3  # weight on padding worth a word
NAMES_SHOWN = 5
Stats = tuple[HeadStats, ...]


@dataclass(frozen=True)
class Finding:
    """One thing worth noticing.

    Attributes:
        kind: empty_rows, not_finite, fill_clamped, padding_seen, saturated, near_uniform, identical_heads, dropped
            or one_key.
        sentence: what it is and why it matters.
        heads: heads it concerns; empty for all.
        tokens: query tokens it concerns.
    """

    kind: str
    sentence: str
    heads: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()


def find(run: Run, sample: int = 0, stats: Stats | None = None) -> tuple[Finding, ...]:
    """Look at one sequence of a run; an ordinary run gives no finding. `stats` are its head statistics, if at hand."""
    stats = head_stats(run, sample) if stats is None else stats
    return tuple(finding for look in LOOKS.values() if (finding := look(run, sample, stats)) is not None)


def _empty_rows(run: Run, sample: int, stats: Stats) -> Finding | None:
    tokens = run.sizes.q_tokens.padded[sample]
    has_key = run.allowed[sample].any(-1).any(0)  # (Sq,)
    empty = [index for index in range(len(tokens)) if not has_key[index]]
    if not empty:
        return None
    names = _list(f"{tokens[index]} (query {index})" for index in empty)
    fill = run.experiment.mask.fill
    effect = {
        "zero": "Its output is zero; code that fills with -inf gives NaN here.",
        "-inf": "With fill -inf the softmax divides 0 by 0: NaN, and NaN spreads to every gradient.",
    }.get(fill, f"With the finite fill {fill} the row is uniform: it reads every key, the hidden ones too.")
    return Finding("empty_rows", f"No key is allowed for {names}. {effect}", tokens=tuple(tokens[i] for i in empty))


def _not_finite(run: Run, sample: int, stats: Stats) -> Finding | None:
    bad = ~run.weights[sample].isfinite().flatten(1).all(-1)  # (H,)
    if not bad.any():
        return None
    heads = tuple(bad.nonzero().flatten().tolist())
    return Finding("not_finite", f"NaN or infinity in the weights of {_heads(heads, run)}.", heads)


def _fill_clamped(run: Run, sample: int, stats: Stats) -> Finding | None:
    fill, dtype = run.experiment.mask.fill, run.scores.dtype
    if run.mask is None or fill in ("zero", "min", "-inf") or float(fill) >= torch.finfo(dtype).min:
        return None
    name = str(dtype).removeprefix("torch.")
    sentence = f"{fill} does not fit in {name} (smallest {torch.finfo(dtype).min:g}); torch's masked_fill would raise."
    return Finding("fill_clamped", sentence + " The smallest number is used instead.")


def _padding_seen(run: Run, sample: int, stats: Stats) -> Finding | None:
    length = run.sizes.k_tokens.lengths[sample]
    rows = counted_rows(run, sample)
    if length == run.sizes.k_len or not len(rows):
        return None
    share = run.weights[sample, :, rows, length:].sum(-1, dtype=torch.float64).mean().item()
    if not share > PADDING_SHARE:
        return None
    return Finding("padding_seen", f"{share:.0%} of the weight goes to padding. Add the padding mask to hide it.")


def _saturated(run: Run, sample: int, stats: Stats) -> Finding | None:
    heads = tuple(s.head for s in stats if s.maximum > ONE_HOT and not math.isnan(s.relative_entropy))
    if not heads:
        return None
    sentence = (
        f"Saturated softmax in {_heads(heads, run)}: the mean largest weight is above {ONE_HOT}, almost one-hot, so "
        "almost no gradient reaches q and k. Smaller scores help: scale 1/sqrt(head_dim), or a smaller gain."
    )
    return Finding("saturated", sentence, heads)


def _near_uniform(run: Run, sample: int, stats: Stats) -> Finding | None:
    heads = tuple(s.head for s in stats if s.relative_entropy > NEAR_UNIFORM)
    if not heads:
        return None
    sentence = (
        f"Near-uniform weights in {_heads(heads, run)}: entropy above {NEAR_UNIFORM:.0%} of its maximum, so every "
        "query reads the plain average of the values. The scores are too small to choose with."
    )
    return Finding("near_uniform", sentence, heads)


def _identical_heads(run: Run, sample: int, stats: Stats) -> Finding | None:
    rows = run.allowed[sample].sum(-1).amax(0) > 1  # a row with one key leaves no choice to differ in
    weights = run.weights[sample][:, rows]  # (H, R, Sk)
    if len(weights) < 2 or not weights.numel() or not weights.isfinite().all():
        return None
    same = [h for h in range(1, len(weights)) if (weights[h] - weights[:h]).abs().flatten(1).amax(-1).min() < SAME_HEAD]
    if not same:
        return None
    groups = len(weights) - len(same)
    noun = "pattern" if groups == 1 else "patterns"
    sentence = (
        f"{len(weights)} heads show only {groups} different {noun}: {_heads(tuple(same), run)} repeat an earlier head. "
        "Heads that start equal also get equal gradients, and stay equal."
    )
    return Finding("identical_heads", sentence, tuple(same))


def _dropped(run: Run, sample: int, stats: Stats) -> Finding | None:
    probability = run.experiment.attention.dropout
    if not probability:
        return None
    sums = run.weights[sample, :, counted_rows(run, sample)].sum(-1, dtype=torch.float64)
    if not sums.numel():
        return None
    sentence = (
        f"Dropout {probability:g} is on, as in training: kept weights are divided by {1 - probability:g}, so rows sum "
        f"to {sums.min().item():.2f} to {sums.max().item():.2f} instead of 1. In evaluation it is off."
    )
    return Finding("dropped", sentence)


def _one_key(run: Run, sample: int, stats: Stats) -> Finding | None:
    if run.sizes.k_len > 1:
        return None
    return Finding("one_key", "There is only one key, so every weight is 1 whatever the scores. Add another token.")


LOOKS: dict[str, Callable[[Run, int, Stats], Finding | None]] = {
    "empty_rows": _empty_rows,
    "not_finite": _not_finite,
    "fill_clamped": _fill_clamped,
    "padding_seen": _padding_seen,
    "one_key": _one_key,
    "saturated": _saturated,
    "near_uniform": _near_uniform,
    "identical_heads": _identical_heads,
    "dropped": _dropped,
}


def _heads(heads: tuple[int, ...], run: Run) -> str:
    if len(heads) == run.weights.shape[1]:
        return "all heads" if len(heads) > 1 else "the only head"
    return ("head " if len(heads) == 1 else "heads ") + _list(map(str, heads))


def _list(names: Iterable[str]) -> str:
    """Join a few names; the rest are counted."""
    names = list(names)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
