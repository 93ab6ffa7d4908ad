"""What each head does, in numbers: where its weight goes, how spread it is, and which heads are alike.

Everything is a mean over the real query rows of one sequence that may attend to at least one key; filler rows do not
count. Not here: sentences about the numbers (findings.py) and pictures.

Axes: H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.experiment import Run

SIMILARITY_ROWS = 256  # query rows compared between heads; more are sampled evenly


@dataclass(frozen=True)
class HeadStats:
    """Numbers of one head.

    Attributes:
        head: index, from 0.
        entropy_nats: -Σ w ln w of a row.
        relative_entropy: entropy divided by ln(number of allowed keys), 0 one-hot to 1 uniform; NaN where no row has
            two keys to choose from.
        effective_keys: exp(entropy), the number of keys a uniform row of that entropy would have.
        diagonal, previous, first: weight on the token itself, on the one before it, and on the first token.
        mean_distance: Σ w |key - query|, in tokens.
        maximum: largest weight of a row.
        row_sum: sum of a row; 1 unless weights were dropped.
    """

    head: int
    entropy_nats: float
    relative_entropy: float
    effective_keys: float
    diagonal: float
    previous: float
    first: float
    mean_distance: float
    maximum: float
    row_sum: float


def counted_rows(run: Run, sample: int = 0) -> Tensor:
    """Give the query rows that count: real tokens with at least one allowed key. Returns indices (R,)."""
    rows = torch.arange(run.sizes.q_tokens.lengths[sample])
    has_key = run.allowed[sample, :, rows].any(-1).all(0)  # (R,)
    return rows[has_key]


def row_entropy(weights: Tensor) -> Tensor:
    """Compute -Σ w ln w over the last axis, with 0 ln 0 = 0. (..., Sk) -> (...)."""
    return torch.xlogy(weights, weights).sum(-1).neg()


def relative_entropy(entropy: Tensor, allowed: Tensor) -> Tensor:
    """Divide the entropy of rows by ln(allowed keys); NaN where a row has no choice. Shapes broadcast."""
    return torch.where(allowed > 1, entropy / allowed.to(entropy.dtype).log(), torch.nan)


def _precise(weights: Tensor) -> Tensor:
    """Raise half precision to float32, and small maps to float64."""
    return weights.double() if weights.numel() < 2**20 else weights.float()


def head_stats(run: Run, sample: int = 0) -> tuple[HeadStats, ...]:
    """Describe every head on one sequence of the batch; all NaN where no row counts.

    Args:
        run: the run. sample: index of the sequence.

    Source: entropy and effective number after Hill 1973; diagonal, previous and first-token heads as in Clark et al.
    2019, "What Does BERT Look At?", section 3.
    """
    rows = counted_rows(run, sample)
    allowed = run.allowed[sample, :, rows].sum(-1)  # (H, R)
    return describe_heads(run.weights[sample, :, rows], allowed, rows + _diagonal_offset(run))


def describe_heads(weights: Tensor, allowed: Tensor, own_key: Tensor) -> tuple[HeadStats, ...]:
    """Describe heads by some rows of their maps.

    Args:
        weights: (H, R, Sk). allowed: number of keys each row may attend to, (H, R).
        own_key: (R,), the key that is the query's own token.
    """
    weights = _precise(weights)
    entropy = row_entropy(weights)  # (H, R)
    distance = (torch.arange(weights.shape[-1]) - own_key[:, None]).abs().to(weights.dtype)  # (R, Sk)
    columns = {
        "entropy_nats": entropy,
        "relative_entropy": relative_entropy(entropy, allowed),
        "effective_keys": entropy.exp(),
        "diagonal": _weight_on(weights, own_key),
        "previous": _weight_on(weights, own_key - 1),
        "first": weights[..., 0],
        "mean_distance": torch.einsum("hrk,rk->hr", weights, distance),
        "maximum": weights.amax(-1),
        "row_sum": weights.sum(-1),
    }
    means = {name: column.nanmean(-1).tolist() for name, column in columns.items()}  # (H, R) -> (H,)
    return tuple(HeadStats(h, **{name: means[name][h] for name in means}) for h in range(weights.shape[0]))


def _diagonal_offset(run: Run) -> int:
    """Position of a query's own key relative to the query, aligned as the experiment's masks."""
    q_len, k_len = run.weights.shape[-2:]
    return k_len - q_len if run.experiment.mask.alignment == "bottom_right" else 0


def _weight_on(weights: Tensor, keys: Tensor) -> Tensor:
    """Take one key's weight per row, 0 where there is no such key. (H, R, Sk), (R,) -> (H, R)."""
    there = (keys >= 0) & (keys < weights.shape[-1])
    picked = weights[:, torch.arange(len(keys)), keys.clamp(0, weights.shape[-1] - 1)]
    return picked * there


@dataclass(frozen=True)
class HeadSimilarity:
    """How alike heads are.

    Attributes:
        matrix: H rows of H numbers: 1 - Jensen-Shannon divergence in bits, mean over rows; 1 identical, 0 disjoint.
        order: heads reordered so that alike ones are neighbours.
        rows_compared: number of query rows that were compared.
    """

    matrix: tuple[tuple[float, ...], ...]
    order: tuple[int, ...]
    rows_compared: int


def head_similarity(run: Run, sample: int = 0) -> HeadSimilarity:
    """Compare all heads on one sequence.

    Source: Jensen-Shannon divergence, Lin 1991; used between heads by Clark et al. 2019, section 6.
    """
    rows = counted_rows(run, sample)
    if len(rows) > SIMILARITY_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, SIMILARITY_ROWS).long()]
    weights = _precise(run.weights[sample, :, rows])  # (H, R, Sk)
    entropy = row_entropy(weights)  # (H, R)
    similarity = torch.ones(len(weights), len(weights), dtype=weights.dtype)
    for head in range(1, len(weights)):
        between = row_entropy((weights[head] + weights[:head]) / 2)  # (head, R)
        divergence = (between - (entropy[head] + entropy[:head]) / 2).mean(-1) / math.log(2)
        similarity[head, :head] = similarity[:head, head] = 1 - divergence.clamp(0, 1)
    return HeadSimilarity(tuple(map(tuple, similarity.tolist())), _chain(similarity), len(rows))


def _chain(similarity: Tensor) -> tuple[int, ...]:
    """Order the heads from head 0, always on to the most similar head that is left."""
    order, left = [0], list(range(1, len(similarity)))
    while left:
        order.append(max(left, key=lambda head: similarity[order[-1], head].item()))
        left.remove(order[-1])
    return tuple(order)
