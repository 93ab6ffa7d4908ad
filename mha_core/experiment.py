"""Running one experiment: from its choices to every tensor between the embeddings and the output.

The choices are `Experiment` (mha_core.choices); sizes are checked against the memory budget before a tensor exists.

Axes: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, E embed_dim, D head_dim.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.budget import budget_bytes, check_budget, run_bytes
from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.init_schemes import InitSpec, generator_for
from mha_core.kernels import attention_scores, attention_weights, mask_scores, share_heads
from mha_core.masks import MaskSizes, MaskSpec, build_mask
from mha_core.sources.inputs import Inputs, Sizes, embed, measure, smaller_inputs
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import muted_in, starting_weights, surroundings

__all__ = ["AttentionConfig", "Experiment", "InitSpec", "MaskSpec", "Run", "run"]


@dataclass(frozen=True, eq=False)
class Run:
    """What one experiment computes.

    Attributes:
        experiment: what was run.
        sizes: B, Sq, Sk and the token labels.
        inputs: query (B, Sq, E), key (B, Sk, kdim), value (B, Sk, vdim).
        mask: boolean, broadcastable to (B, H, Sq, Sk), True = may attend; None when nothing is hidden.
        q: (B, H, Sq, D). k, v: (B, Hkv, Sk, D), rotary positions applied.
        weights: (B, H, Sq, Sk), as the kernel gives them; the fused kernel gives none, so with "sdpa" they are
            computed beside it by the equation.
        context: (B, H, Sq, D), what each head read.
        output: (B, Sq, E).
        forward_ms: wall time of projections, kernel and output, in milliseconds.
        score_bias: what the layer adds to the scaled scores, (1 or B, H, Sq, Sk); None where it adds nothing.
    """

    experiment: Experiment
    sizes: Sizes
    inputs: Inputs
    mask: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    context: Tensor
    output: Tensor
    forward_ms: float
    score_bias: Tensor | None = None

    @cached_property
    def scores(self) -> Tensor:
        """Scores before the mask, scaled, (B, H, Sq, Sk); computed when first asked for."""
        return _scores(self.experiment, self.q, self.k, self.score_bias)

    @property
    def masked_scores(self) -> Tensor:
        """Scores after the mask, (B, H, Sq, Sk): what the softmax sees."""
        return mask_scores(self.scores, self.mask, self.experiment.mask.fill)

    @property
    def allowed(self) -> Tensor:
        """The mask spread to (B, H, Sq, Sk), True = may attend (a view; do not write to it)."""
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if self.mask is None else self.mask
        return mask.expand(self.weights.shape)


def build_layer(experiment: Experiment) -> MultiHeadAttention:
    """Build the layer with its initial weights, fill and dropout generator, in the experiment's number format."""
    weights = starting_weights(experiment)
    layer = MultiHeadAttention.from_config(experiment.attention, weights)
    layer.fill = experiment.mask.fill
    layer.generator = generator_for(experiment.seed, "dropout")
    if isinstance(experiment.source, PretrainedSource):
        layer.muted_heads = muted_in(experiment, experiment.source.layer)
    return layer.to(experiment.torch_dtype).train(experiment.attention.dropout > 0)


def prepare(experiment: Experiment) -> Sizes:
    """Find the sizes of an experiment and refuse those that do not fit in memory, before any tensor exists.

    Raises:
        MhaError: the input has no token, or the run would take more memory than allowed.
    """
    sizes = measure(experiment.source)
    excess = needed_bytes(experiment, sizes) / budget_bytes()
    if excess > 1:
        keep = 0.9 / math.sqrt(excess)  # matrices grow with the square of the length
        config = experiment.attention
        tied: dict[str, FieldValue] = {} if config.head_size is None else {"head_size": None}
        narrower = Suggestion.of(embed_dim=64 * config.num_heads, kdim=None, vdim=None, **tied)
        smaller = [*smaller_inputs(experiment.source, sizes, keep), narrower]
        check_budget(
            config,
            sizes.batch,
            sizes.q_len,
            sizes.k_len,
            experiment.torch_dtype.itemsize,
            [suggestion for suggestion in smaller if _fits(experiment, suggestion)],
        )
    return sizes


def needed_bytes(experiment: Experiment, sizes: Sizes) -> int:
    """Estimate the bytes that running the experiment takes."""
    itemsize = experiment.torch_dtype.itemsize
    return run_bytes(experiment.attention, sizes.batch, sizes.q_len, sizes.k_len, itemsize)


def _fits(experiment: Experiment, suggestion: Suggestion) -> bool:
    try:
        smaller = Experiment.from_fields(experiment.to_fields() | dict(suggestion.changes))
        return needed_bytes(smaller, measure(smaller.source)) <= budget_bytes()
    except MhaError:
        return False


@dataclass(frozen=True, eq=False)
class Given:
    """What a forward pass needs: sizes, inputs, the mask (or None) and the layer."""

    sizes: Sizes
    inputs: Inputs
    mask: Tensor | None
    layer: MultiHeadAttention


def give(experiment: Experiment) -> Given:
    """Make the inputs, the mask and the layer of an experiment.

    Raises:
        MhaError: as `prepare`, or the custom mask does not fit the lengths.
    """
    sizes = prepare(experiment)
    layer, dtype = build_layer(experiment), experiment.torch_dtype
    if isinstance(experiment.source, PretrainedSource):
        around = surroundings(experiment)
        layer.score_bias = None if around.score_bias is None else around.score_bias.to(dtype)
        layer.rotary = around.rotary
        return Given(sizes, Inputs(around.query, around.key, around.key).to(dtype), around.mask, layer)
    lengths = torch.tensor(sizes.k_tokens.lengths)
    mask = build_mask(experiment.mask, MaskSizes(sizes.batch, sizes.q_len, sizes.k_len, lengths))
    inputs = embed(experiment.source, sizes, experiment.attention, experiment.positions, experiment.seed)
    return Given(sizes, inputs.to(dtype), mask, layer)


@torch.no_grad()
def run(experiment: Experiment) -> Run:
    """Run an experiment. The same experiment gives the same numbers, bit for bit on one machine.

    Raises:
        MhaError: as `give`.
    """
    given = give(experiment)
    sizes, inputs, mask, layer = given.sizes, given.inputs, given.mask, given.layer
    with precision(experiment):
        start = time.perf_counter()
        q, k, v = layer.project(inputs.query, inputs.key, inputs.value)
        context, weights = layer.attend(q, k, v, mask)
        output = layer.merge(context)
        forward_ms = (time.perf_counter() - start) * 1e3
    if weights is None:
        scores = _scores(experiment, q, k, layer.score_bias)
        weights = attention_weights(scores, mask, layer.fill, overwrite=True)
    return Run(experiment, sizes, inputs, mask, q, k, v, weights, context, output, forward_ms, layer.score_bias)


@torch.no_grad()
def _scores(experiment: Experiment, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    config = experiment.attention
    with precision(experiment):
        return attention_scores(q, share_heads(k, config.num_heads), config.softmax_scale, bias)


def precision(experiment: Experiment) -> AbstractContextManager[Any]:
    """Give the context in which an experiment's layer runs: autocast, or nothing."""
    return torch.amp.autocast("cpu", dtype=torch.bfloat16) if experiment.dtype == "autocast" else nullcontext()
