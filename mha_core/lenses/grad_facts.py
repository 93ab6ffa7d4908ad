"""What of one forward and backward pass decides which factor of the chain rule is to blame: measured, not guessed.

Letters: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.experiment import Given
from mha_core.layouts import AttentionWeights
from mha_core.lenses.head_stats import relative_entropy, row_entropy

ALIKE_ROUNDINGS = 16  # roundings by which rows that are equal in exact arithmetic may differ
FORWARD = ("q", "k", "v", "scores", "weights", "context", "output")
BACKWARD = ("output", "context", "weights", "scores", "q", "k", "v")


@dataclass(frozen=True)
class Facts:
    """Measured facts; those about weights are None for the fused kernel, which shows none.

    Attributes:
        keys_alike, values_alike: whether all keys (values) of every sequence are one vector, up to rounding.
        most_keys: the largest number of keys that any row may attend to.
        peak: mean over rows of the largest weight, rows without an allowed key left out.
        entropy_nats: mean entropy of a row. relative_entropy: of ln(allowed keys), rows with one key left out.
        hidden_weight: largest weight on a hidden key, in rows that have an allowed one.
        candidates_alike: the loss's read-out offers one vector only.
        identical_heads: all heads have the same numbers, and nothing draws them apart.
        not_finite: the first tensor with NaN or Inf, in the order they are computed; None where there is none.
        input_rms: of query, key and value input.
    """

    keys_alike: bool
    values_alike: bool
    most_keys: int
    peak: float | None
    entropy_nats: float | None
    relative_entropy: float | None
    hidden_weight: float
    candidates_alike: bool
    identical_heads: bool
    not_finite: str | None
    input_rms: tuple[float, float, float]


def facts_of(
    experiment: Experiment, given: Given, kept: Mapping[str, tuple[Tensor, Tensor]], candidates_are_alike: bool
) -> Facts:
    """Measure the facts of a pass; `kept` holds each tensor and its gradient."""
    weights = kept["weights"][0] if "weights" in kept else None
    allowed = _allowed_counts(given)
    peak, entropy, relative = (None, None, None) if weights is None else _spread_of(weights, allowed)
    inputs = given.inputs
    return Facts(
        keys_alike=alike(kept["k"][0]),
        values_alike=alike(kept["v"][0]),
        most_keys=int(allowed.max()),
        peak=peak,
        entropy_nats=entropy,
        relative_entropy=relative,
        hidden_weight=0.0 if weights is None else _hidden_weight(weights, given.mask),
        candidates_alike=candidates_are_alike,
        identical_heads=experiment.attention.dropout == 0 and heads_identical(given.layer.weights(), given),
        not_finite=_first_not_finite(kept),
        input_rms=(_rms(inputs.query), _rms(inputs.key), _rms(inputs.value)),
    )


def _rms(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) / math.sqrt(tensor.numel())


def alike(rows: Tensor) -> bool:
    """Whether all rows of each head are one vector that is not zero, up to rounding. (B, Hkv, S, D), S > 1."""
    largest = rows.abs().max().item()
    if rows.shape[-2] < 2 or not largest > 0:
        return False
    difference = (rows - rows[..., :1, :]).abs().max().item()
    return difference <= ALIKE_ROUNDINGS * torch.finfo(rows.dtype).eps * largest


def heads_identical(weights: AttentionWeights, given: Given) -> bool:
    """Whether every head has the same rows of q, k, v and columns of out: they then also get the same gradient."""
    config = given.layer.config
    if config.num_heads == 1:
        return False
    biases = (weights.q_bias, weights.k_bias, weights.v_bias)
    blocks = [weights.q, weights.k, weights.v, weights.out.t(), *(bias for bias in biases if bias is not None)]
    heads = [block.reshape(-1, config.head_dim, *block.shape[1:]) for block in blocks]
    return all(bool((each == each[:1]).all()) for each in heads)


def _allowed_counts(given: Given) -> Tensor:
    """How many keys each row may attend to, (B or 1, 1, Sq or 1)."""
    if given.mask is None:
        return torch.full((1, 1, 1), given.sizes.k_len)
    return given.mask.expand(*given.mask.shape[:-1], given.sizes.k_len).sum(-1)


def _spread_of(weights: Tensor, allowed: Tensor) -> tuple[float | None, float | None, float | None]:
    """Mean largest weight, entropy in nats and relative entropy of the rows that have a key."""
    has_key = (allowed > 0).expand(weights.shape[:-1])
    if not has_key.any():
        return None, None, None
    wide = weights if weights.itemsize >= 4 else weights.float()
    entropy = row_entropy(wide)  # (B, H, Sq)
    has_choice = (allowed > 1).expand_as(has_key)
    relative = relative_entropy(entropy, allowed)[has_choice].mean().item() if has_choice.any() else None
    return wide.amax(-1)[has_key].mean().item(), entropy[has_key].mean().item(), relative


def _hidden_weight(weights: Tensor, mask: Tensor | None) -> float:
    """The largest weight on a hidden key, in rows that have an allowed one."""
    if mask is None:
        return 0.0
    on_hidden = weights.masked_fill(mask, 0.0).amax(-1)
    return on_hidden.masked_fill(~mask.any(-1), 0.0).max().item()


def _first_not_finite(kept: Mapping[str, tuple[Tensor, Tensor]]) -> str | None:
    for which, (names, words) in enumerate(((FORWARD, "{}"), (BACKWARD, "the gradient of {}"))):
        for name in names:
            if name in kept and not bool(torch.isfinite(kept[name][which]).all()):
                return words.format(name)
    return None
