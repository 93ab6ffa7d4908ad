"""Everything a person chooses, as one frozen value: `Experiment`.

It joins the records of input, layer, mask, initial values, number format and seed; it writes itself as flat fields,
JSON and a query string, and reads them back exactly. Running it is `mha_core.experiment`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode

import torch

from mha_core.config import CONFIG_FIELDS, DEFAULT_ROPE_THETA, AttentionConfig, require_choice, require_int
from mha_core.errors import FieldValue, MhaError
from mha_core.fields import DEFAULTS, FIELDS, TORCH_DTYPES, Dtype, read_query, write_query
from mha_core.init_schemes import MAX_SEED, InitSpec, check_packed
from mha_core.kernels import check_sdpa
from mha_core.masks import MaskSpec
from mha_core.sources.inputs import Positions, RandomSource, TextSource
from mha_core.sources.models.vocabularies import check_embeddings
from mha_core.sources.trained import FREE, CheckpointSource, PretrainedSource

Source = TextSource | RandomSource | PretrainedSource | CheckpointSource

# attribute of each record -> its flat field; fields of AttentionConfig keep their names
_TEXT = {name: name for name in ("text", "memory_text", "tokenizer", "embeddings")}
_RANDOM = {name: name for name in ("batch", "q_len", "k_len", "distribution")}
_PRETRAINED = {
    name: name for name in ("model", "layer", "text", "memory_text", "own_mask", "replaced", "muted", "reach")
}
_CHECKPOINT = {"checkpoint": "checkpoint", "layer": "checkpoint_layer"} | {n: n for n in ("num_heads", "replaced")}
_MASK = {"kinds": "mask", "custom": "custom_mask"} | {n: n for n in ("window", "direction", "alignment", "fill")}
_INIT = {"scheme": "init", "gain": "gain", "std": "init_std", "targets": "init_targets", "bias": "init_bias"}
_INIT |= {"packed": "init_packed"}


@dataclass(frozen=True)
class Experiment:
    """Everything a person chooses.

    Args:
        source: text, random input, or a layer of a trained model or of a checkpoint, which fixes the layer's sizes.
        attention: the layer.
        mask: which masks, and the fill.
        init: initial values of the weights.
        positions: "none", "sinusoidal" (added to the embeddings) or "rotary" (in the layer; sets its rope_theta).
        dtype: number format of weights and activations; "autocast" is float32 under bfloat16 autocast.
        seed: of weights, embeddings and dropout.

    Raises:
        MhaError: a choice is unknown, or choices contradict one another.
    """

    source: Source = field(default_factory=TextSource)
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
        if isinstance(self.source, PretrainedSource | CheckpointSource):
            object.__setattr__(self, "attention", self.source.layer_config(self.attention))
        if isinstance(self.source, PretrainedSource):
            object.__setattr__(self, "positions", "none")
        if self.positions == "rotary" and self.attention.rope_theta is None:
            object.__setattr__(self, "attention", replace(self.attention, rope_theta=DEFAULT_ROPE_THETA))
        if self.positions == "none" and self.attention.rope_theta is not None:
            object.__setattr__(self, "positions", "rotary")
        if self.attention.kernel == "sdpa":
            check_sdpa(self.mask.fill, self.attention.dropout)
        check_packed(self.attention, self.init)
        words = self.source.words if isinstance(self.source, CheckpointSource) else self.source
        if isinstance(words, TextSource):
            check_embeddings(words.embeddings, words.tokenizer, self.attention, sizes_are_free=words is self.source)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Format of weights and inputs."""
        return TORCH_DTYPES[self.dtype]

    def to_fields(self) -> dict[str, FieldValue]:
        """Give the flat fields, those of the other source left out."""
        values: dict[str, FieldValue] = _source_fields(self.source)
        values |= {name: getattr(self.attention, name) for name in _free_of(values["source"])}
        values |= {flat: getattr(self.mask, name) for name, flat in _MASK.items()}
        values |= {flat: getattr(self.init, name) for name, flat in _INIT.items()}
        values |= {} if values["source"] == "pretrained" else {"positions": self.positions}
        return values | {"dtype": self.dtype, "seed": self.seed}

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
        return cls(
            source=source_of(values),
            attention=AttentionConfig(**{name: values[name] for name in _free_of(values["source"])}),
            mask=mask_of(values),
            init=init_of(values),
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
                blamed += ["source"] if values["source"] in ("pretrained", "checkpoint") else []  # it may not be there
                wrong = next((name for name in blamed if name in given), given[-1])
                given.remove(wrong)
                values[wrong] = DEFAULTS[wrong]
                problems.append(
                    f"{error.problem}; the default {FIELDS[wrong].write(DEFAULTS[wrong])} is used for {wrong}."
                )


def _record(names: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {attribute: values[flat] for attribute, flat in names.items()}


def _free_of(source: FieldValue) -> tuple[str, ...]:
    """The fields of the layer that a source leaves open."""
    open_fields = {"pretrained": (*FREE, "scale"), "checkpoint": (*FREE, "scale", "rope_theta")}
    return open_fields.get(str(source), CONFIG_FIELDS)


_KINDS = {
    "text": (TextSource, _TEXT),
    "random": (RandomSource, _RANDOM),
    "pretrained": (PretrainedSource, _PRETRAINED),
    "checkpoint": (CheckpointSource, _CHECKPOINT),
}


def _source_fields(source: Source) -> dict[str, FieldValue]:
    word, names = next((word, names) for word, (kind, names) in _KINDS.items() if isinstance(source, kind))
    values: dict[str, FieldValue] = {"source": word} | {flat: getattr(source, name) for name, flat in names.items()}
    return _source_fields(source.words) | values if isinstance(source, CheckpointSource) else values


def source_of(values: Mapping[str, Any]) -> Source:
    """Build the input that flat fields describe; all of them have to be there."""
    kind, names = _KINDS[values["source"]]
    record = _record(names, values)
    if kind is CheckpointSource:
        record["words"] = TextSource(**_record(_TEXT, values))
    source: Source = kind(**record)
    return source


def mask_of(values: Mapping[str, Any]) -> MaskSpec:
    """Build the mask that flat fields describe; all of them have to be there."""
    return MaskSpec(**_record(_MASK, values))


def init_of(values: Mapping[str, Any]) -> InitSpec:
    """Build the initial values that flat fields describe; all of them have to be there."""
    return InitSpec(**_record(_INIT, values))
