"""One experiment: everything a person chooses, as one frozen value, and running it.

`Experiment` joins the records of input, layer, mask, initial values, number format and seed; it writes itself as flat
fields, JSON and a query string, and reads them back exactly. `run` turns it into a `Run`: every tensor from the
embeddings to the output.

Axes: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, E embed_dim, D head_dim.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.budget import budget_bytes, check_budget, run_bytes
from mha_core.config import CONFIG_FIELDS, DEFAULT_ROPE_THETA, AttentionConfig, require_choice, require_int
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.fields import DEFAULTS, FIELDS, TORCH_DTYPES, Dtype, read_query, write_query
from mha_core.init_schemes import MAX_SEED, InitSpec, check_packed, generator_for, initial_weights
from mha_core.kernels import attention_scores, attention_weights, check_sdpa, mask_scores, share_heads
from mha_core.masks import MaskSizes, MaskSpec, build_mask
from mha_core.sources.inputs import Inputs, Positions, RandomSource, Sizes, TextSource, embed, measure, smaller_inputs

__all__ = ["AttentionConfig", "Experiment", "InitSpec", "MaskSpec", "Run", "run"]

# attribute of each record -> its flat field; fields of AttentionConfig keep their names
_TEXT = {"text": "text", "memory_text": "memory_text", "tokenizer": "tokenizer"}
_RANDOM = {name: name for name in ("batch", "q_len", "k_len", "distribution")}
_MASK = {"kinds": "mask", "custom": "custom_mask"} | {n: n for n in ("window", "direction", "alignment", "fill")}
_INIT = {"scheme": "init", "gain": "gain", "std": "init_std", "targets": "init_targets", "bias": "init_bias"}
_INIT |= {"packed": "init_packed"}


@dataclass(frozen=True)
class Experiment:
    """Everything a person chooses.

    Args:
        source: text or random input.
        attention: the layer.
        mask: which masks, and the fill.
        init: initial values of the weights.
        positions: "none", "sinusoidal" (added to the embeddings) or "rotary" (in the layer; sets its rope_theta).
        dtype: number format of weights and activations; "autocast" is float32 under bfloat16 autocast.
        seed: of weights, embeddings and dropout.

    Raises:
        MhaError: a choice is unknown, or choices contradict one another.
    """

    source: TextSource | RandomSource = field(default_factory=TextSource)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    mask: MaskSpec = field(default_factory=MaskSpec)
    init: InitSpec = field(default_factory=InitSpec)
    positions: Positions = "none"
    dtype: Dtype = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("positions", self.positions, get_args(Positions))
        require_choice("dtype", self.dtype, get_args(Dtype))
        require_int("seed", self.seed, 0, MAX_SEED)
        if self.positions == "rotary" and self.attention.rope_theta is None:
            object.__setattr__(self, "attention", replace(self.attention, rope_theta=DEFAULT_ROPE_THETA))
        if self.positions == "none" and self.attention.rope_theta is not None:
            object.__setattr__(self, "positions", "rotary")
        if self.attention.kernel == "sdpa":
            check_sdpa(self.mask.fill, self.attention.dropout)
        check_packed(self.attention, self.init)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Format of weights and inputs."""
        return TORCH_DTYPES[self.dtype]

    def to_fields(self) -> dict[str, FieldValue]:
        """Give the flat fields, those of the other source left out."""
        source_fields = _TEXT if isinstance(self.source, TextSource) else _RANDOM
        values: dict[str, FieldValue] = {"source": "text" if isinstance(self.source, TextSource) else "random"}
        values |= {flat: getattr(self.source, name) for name, flat in source_fields.items()}
        values |= {name: getattr(self.attention, name) for name in CONFIG_FIELDS}
        values |= {flat: getattr(self.mask, name) for name, flat in _MASK.items()}
        values |= {flat: getattr(self.init, name) for name, flat in _INIT.items()}
        return values | {"positions": self.positions, "dtype": self.dtype, "seed": self.seed}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Experiment:
        """Build an experiment from flat fields; missing ones take their defaults.

        Raises:
            MhaError: an unknown name, a bad value, or values that contradict one another.
        """
        for name in fields:
            if name not in FIELDS:
                raise MhaError(
                    str(name), fields[name], "one of " + ", ".join(FIELDS), problem=f"{name!r} is not a field"
                )
        values: dict[str, Any] = DEFAULTS | dict(fields)
        require_choice("source", values["source"], FIELDS["source"].choices)
        text, random = _record(_TEXT, values), _record(_RANDOM, values)
        return cls(
            source=TextSource(**text) if values["source"] == "text" else RandomSource(**random),
            attention=AttentionConfig(**{name: values[name] for name in CONFIG_FIELDS}),
            mask=MaskSpec(**_record(_MASK, values)),
            init=InitSpec(**_record(_INIT, values)),
            positions=values["positions"],
            dtype=values["dtype"],
            seed=values["seed"],
        )

    def to_json(self) -> str:
        """Write the flat fields as JSON, in a fixed order."""
        return json.dumps(self.to_fields(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Experiment:
        """Read what `to_json` wrote.

        Raises:
            MhaError: not a JSON object, or not an experiment.
        """
        try:
            loaded = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MhaError("json", text[:40], "a JSON object", problem=f"this is not JSON: {error}") from error
        if not isinstance(loaded, dict):
            raise MhaError("json", text[:40], "a JSON object of fields")
        return cls.from_fields({name: tuple(v) if isinstance(v, list) else v for name, v in loaded.items()})

    def to_query(self) -> str:
        """Write a query string of the fields that differ from their defaults."""
        return urlencode(write_query(self.to_fields()))

    @classmethod
    def from_query(cls, query: str | Mapping[str, str]) -> tuple[Experiment, list[str]]:
        """Read a query string; whatever is wrong in it is named and replaced by its default.

        Returns:
            The experiment, and one sentence per entry that was not used.
        """
        pairs = dict(parse_qsl(query.lstrip("?"), keep_blank_values=True)) if isinstance(query, str) else query
        values, problems = read_query(pairs)
        given = [name for name in values if values[name] != DEFAULTS[name]]
        while True:
            try:
                return cls.from_fields(values), problems
            except MhaError as error:
                blamed = [error.field, *(name for suggestion in error.try_ for name, _ in suggestion.changes)]
                wrong = next((name for name in blamed if name in given), given[-1])
                given.remove(wrong)
                values[wrong] = DEFAULTS[wrong]
                problems.append(
                    f"{error.problem}; the default {FIELDS[wrong].write(DEFAULTS[wrong])} is used for {wrong}."
                )


def _record(names: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {attribute: values[flat] for attribute, flat in names.items()}


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

    @cached_property
    def scores(self) -> Tensor:
        """Scores before the mask, scaled, (B, H, Sq, Sk); computed when first asked for."""
        return _scores(self.experiment, self.q, self.k)

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
    weights = initial_weights(experiment.attention, experiment.init, experiment.seed)
    layer = MultiHeadAttention.from_config(experiment.attention, weights)
    layer.fill = experiment.mask.fill
    layer.generator = generator_for(experiment.seed, "dropout")
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
        narrower = Suggestion.of(embed_dim=64 * experiment.attention.num_heads, kdim=None, vdim=None)
        smaller = [*smaller_inputs(experiment.source, sizes, keep), narrower]
        check_budget(
            experiment.attention,
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


@torch.no_grad()
def run(experiment: Experiment) -> Run:
    """Run an experiment. The same experiment gives the same numbers, bit for bit on one machine.

    Raises:
        MhaError: as `prepare`, or the custom mask does not fit the lengths.
    """
    sizes = prepare(experiment)
    lengths = torch.tensor(sizes.k_tokens.lengths)
    mask = build_mask(experiment.mask, MaskSizes(sizes.batch, sizes.q_len, sizes.k_len, lengths))
    inputs = embed(experiment.source, sizes, experiment.attention, experiment.positions, experiment.seed)
    inputs = inputs.to(experiment.torch_dtype)
    layer = build_layer(experiment)
    with _precision(experiment):
        start = time.perf_counter()
        q, k, v = layer.project(inputs.query, inputs.key, inputs.value)
        context, weights = layer.attend(q, k, v, mask)
        output = layer.merge(context)
        forward_ms = (time.perf_counter() - start) * 1e3
    if weights is None:
        weights = attention_weights(_scores(experiment, q, k), mask, layer.fill, overwrite=True)
    return Run(experiment, sizes, inputs, mask, q, k, v, weights, context, output, forward_ms)


@torch.no_grad()
def _scores(experiment: Experiment, q: Tensor, k: Tensor) -> Tensor:
    config = experiment.attention
    with _precision(experiment):
        return attention_scores(q, share_heads(k, config.num_heads), config.softmax_scale)


def _precision(experiment: Experiment) -> AbstractContextManager[Any]:
    return torch.amp.autocast("cpu", dtype=torch.bfloat16) if experiment.dtype == "autocast" else nullcontext()
