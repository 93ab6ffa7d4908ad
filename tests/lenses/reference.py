"""An experiment computed a second time, head by head and in float64, without the layer, the kernels or the masks.

It shares with the product only the drawn numbers (embeddings and initial weights); the mask is built cell by cell from
its definition and the softmax runs over the allowed keys. Also here: the formulas of the head numbers, row by row.
Axes: B batch, H heads, Sq queries, Sk keys, E embed_dim, D head_dim.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import Experiment, Run, run
from mha_core.init_schemes import initial_weights

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """Scores before the mask, allowed cells and weights, (B, H, Sq, Sk); output (B, Sq, E)."""

    scores: Array
    allowed: NDArray[np.bool_]
    weights: Array
    output: Array


def experiment(**fields: Any) -> Experiment:
    """An experiment of flat fields."""
    return Experiment.from_fields(fields)


def done(**fields: Any) -> Run:
    """The run of an experiment of flat fields."""
    return run(experiment(**fields))


def allowed_cells(result: Run) -> NDArray[np.bool_]:
    """Which query may attend to which key, (B, Sq, Sk), decided cell by cell."""
    spec, sizes = result.experiment.mask, result.sizes
    offset = sizes.k_len - sizes.q_len if spec.alignment == "bottom_right" else 0
    back = 0 if spec.direction == "ahead" else spec.window
    ahead = 0 if spec.direction == "back" else spec.window
    cells = np.zeros((sizes.batch, sizes.q_len, sizes.k_len), dtype=bool)
    for b, i, j in np.ndindex(cells.shape):
        step = j - (i + offset)
        rules = {
            "padding": j < sizes.k_tokens.lengths[b],
            "causal": step <= 0,
            "local": -back <= step <= ahead,
            "custom": spec.custom is None or spec.custom[i][j] == "1",
        }
        cells[b, i, j] = all(rules[kind] for kind in spec.kinds)
    return cells


def turn(vectors: Array, theta: float, first: int) -> Array:
    """Rotary positions of one head, (S, D): channel pair (d, d + D/2) as a complex number (Su et al. 2021)."""
    half = vectors.shape[1] // 2
    pairs = vectors[:, :half] + 1j * vectors[:, half:]
    places = first + np.arange(len(vectors))
    pairs = pairs * np.exp(1j * places[:, None] * theta ** (-2 * np.arange(half) / vectors.shape[1]))
    return np.concatenate([pairs.real, pairs.imag], axis=1)


def softmax_row(scores: Array, allowed: NDArray[np.bool_], fill: str) -> Array:
    """One row of weights under the fill of the experiment (float32 limits)."""
    if fill == "zero":
        row = np.zeros_like(scores)
        if allowed.any():
            powers = np.exp(scores[allowed] - scores[allowed].max())
            row[allowed] = powers / powers.sum()
        return row
    if fill == "-inf" and not allowed.any():
        return np.full_like(scores, np.nan)
    value = float(np.finfo(np.float32).min) if fill == "min" else float(fill)
    filled = np.where(allowed, scores, value)
    powers = np.exp(filled - filled.max())
    return powers / powers.sum()


def reference(result: Run) -> Reference:
    """Compute the experiment of a run again (no dropout)."""
    config, spec = result.experiment.attention, result.experiment.mask
    w = initial_weights(config, result.experiment.init, result.experiment.seed)
    query, key, value = (t.double().numpy() for t in (result.inputs.query, result.inputs.key, result.inputs.value))
    (batch, q_len, _), k_len = query.shape, key.shape[1]
    depth, group = len(w.q) // config.num_heads, config.num_heads // config.kv_heads
    allowed = allowed_cells(result)
    scores = np.zeros((batch, config.num_heads, q_len, k_len))
    weights, output = np.zeros_like(scores), np.zeros((batch, q_len, config.embed_dim))
    for b, h in itertools.product(range(batch), range(config.num_heads)):

        def project(x: Array, name: str, head: int) -> Array:
            rows = slice(head * depth, (head + 1) * depth)
            bias = getattr(w, f"{name}_bias")
            return x @ getattr(w, name)[rows].double().numpy().T + (0 if bias is None else bias[rows].double().numpy())

        q, k, v = project(query[b], "q", h), project(key[b], "k", h // group), project(value[b], "v", h // group)
        if config.rope_theta is not None:
            q, k = turn(q, config.rope_theta, k_len - q_len), turn(k, config.rope_theta, 0)
        scores[b, h] = q @ k.T * (1 / math.sqrt(depth) if config.scale is None else config.scale)
        weights[b, h] = [softmax_row(scores[b, h, i], allowed[b, i], spec.fill) for i in range(q_len)]
        output[b] += weights[b, h] @ v @ w.out[:, h * depth : (h + 1) * depth].double().numpy().T
    if w.out_bias is not None:
        output += w.out_bias.double().numpy()
    return Reference(scores, np.broadcast_to(allowed[:, None], scores.shape), weights, output)


def entropy(row: Array) -> float:
    """-Σ w ln w of one row, with 0 ln 0 = 0."""
    return -sum(w * math.log(w) for w in map(float, row) if w > 0)


def similarity(first: Array, second: Array) -> float:
    """1 - Jensen-Shannon divergence in bits, mean over rows: KL of each to the middle (Lin 1991, eq. 3)."""

    def divergence(p: Array, q: Array) -> float:
        return sum(a * math.log2(a / b) for a, b in zip(map(float, p), map(float, q), strict=True) if a > 0)

    middles = (first + second) / 2
    halves = [divergence(p, m) / 2 + divergence(q, m) / 2 for p, q, m in zip(first, second, middles, strict=True)]
    return 1 - sum(halves) / len(halves)


def pooled(maps: Array, allowed: NDArray[np.bool_], side: int, kind: str) -> tuple[Array, NDArray[np.bool_]]:
    """Pool (H, Sq, Sk) to at most `side` cells a side, block by block; hidden cells take no part."""
    heads, q_len, k_len = maps.shape
    tall, wide = math.ceil(q_len / side), math.ceil(k_len / side)
    shape = (heads, math.ceil(q_len / tall), math.ceil(k_len / wide))
    values, hidden = np.zeros(shape), np.zeros(shape, dtype=bool)
    for h, i, j in np.ndindex(shape):
        block = (h, slice(i * tall, (i + 1) * tall), slice(j * wide, (j + 1) * wide))
        cells = maps[block][allowed[block]]
        hidden[h, i, j] = cells.size == 0
        if cells.size:
            values[h, i, j] = cells.max() if kind == "max" else cells.mean()
    return values, hidden
