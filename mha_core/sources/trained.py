"""Inputs that come with their layer: one attention layer of a trained model, or of a checkpoint file.

A trained model gives the layer its weights, its real input, its mask and positions; a checkpoint gives weights alone,
and the input is embedded text. Both fix the sizes of the layer; what stays free is named in `FREE`. Running the model
with the edits these records describe is `mha_core.trained_layer`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mha_core.config import MAX_HEADS, AttentionConfig, require_choice, require_int, require_names
from mha_core.errors import MhaError, Suggestion
from mha_core.init_schemes import TARGETS
from mha_core.layouts import AttentionWeights
from mha_core.sources.inputs import RandomSource, Sizes, TextSource, measure
from mha_core.sources.tokens import DEFAULT_TEXT

if TYPE_CHECKING:  # transformers is slow to import and needed by few
    from mha_core.sources.checkpoints.file import Checkpoint
    from mha_core.sources.families import FoundLayer
    from mha_core.sources.models.real_model import RealModel, Site
    from mha_core.sources.models.text import ModelInput

Reach = Literal["layer", "all"]
FREE = ("projection", "qkv_layout", "head_split", "kernel", "dropout")  # choices that leave the layer what it is
MAX_LAYERS = 4096


def parse_heads(words: Sequence[str]) -> tuple[str, ...]:
    """Read heads written "layer.head", in their natural order, each once.

    Raises:
        MhaError: field "muted".
    """
    words = words.split(",") if isinstance(words, str) else words
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise MhaError("muted", words, 'heads written "layer.head", as 5.1,5.7')
    pairs = set()
    for word in words:
        layer, dot, head = word.strip().partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal() and len(word) < 12):
            raise MhaError("muted", word[:20], 'heads written "layer.head", as 5.1,5.7')
        pairs.add((int(layer), int(head)))
    return tuple(f"{layer}.{head}" for layer, head in sorted(pairs))


def sizes_at(site: Site, given: ModelInput) -> Sizes:
    """Find the sizes of a model's layer for an input: a decoder reads the second text, cross-attention both."""
    queries = given.second if site.stack == "decoder" and given.second is not None else given.tokens
    keys = given.tokens if site.kind == "cross" else queries
    return Sizes(queries, keys, site.kind == "cross")


@dataclass(frozen=True)
class PretrainedSource:
    """One attention layer of a trained model, on a text, with edits.

    Args:
        model: "minilm", "smollm2", a folder, or a name on the hub.
        layer: number of the attention layer, in the order the model runs them.
        text: what the model reads, one sequence per line.
        memory_text: what the decoder of an encoder-decoder pair reads; None means the same text.
        own_mask: keep the model's own mask: the future hidden in a decoder, filler hidden in a batch.
        replaced: matrices of the layer that the experiment's initialisation replaces.
        muted: heads that say nothing, as "layer.head"; in any layer.
        reach: whether mask, scale and replaced matrices are changed in this "layer" or in "all" of its kind.

    Raises:
        MhaError: a value that is none. Whether the model is there is asked when it is needed.
    """

    model: str = "minilm"
    layer: int = 0
    text: str = DEFAULT_TEXT
    memory_text: str | None = None
    own_mask: bool = True
    replaced: tuple[str, ...] = ()
    muted: tuple[str, ...] = ()
    reach: Reach = "layer"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise MhaError("model", self.model, "minilm, smollm2, a folder, or a name on the hub")
        if not isinstance(self.own_mask, bool):
            raise MhaError("own_mask", self.own_mask, "true or false")
        self.as_text()  # which checks the texts
        require_int("layer", self.layer, 0, MAX_LAYERS)
        require_choice("reach", self.reach, get_args(Reach))
        object.__setattr__(self, "replaced", require_names("replaced", self.replaced, TARGETS))
        object.__setattr__(self, "muted", parse_heads(self.muted))

    def loaded(self) -> RealModel:
        """Give the model, loading it on first use."""
        from mha_core.sources.models.loading import load

        return load(self.model)

    def site(self) -> Site:
        """Give the layer in its model."""
        return self.loaded().site(self.layer)

    def read(self) -> ModelInput:
        """Read the text as the model does."""
        return self.loaded().read(self.text, self.memory_text)

    def sizes(self) -> Sizes:
        """Find the layer's sizes: a decoder reads the second text, cross-attention both."""
        return sizes_at(self.site(), self.read())

    def title(self) -> str:
        """Name the model and the layer."""
        return f"{self.loaded().title}, {self.site().label}"

    def as_text(self) -> TextSource:
        """Give the text it reads."""
        return TextSource(self.text, self.memory_text)

    def stand_in(self) -> RandomSource:
        """Give random input of the same sizes, for lenses that stack or compare layers outside the model."""
        sizes = self.sizes()
        return RandomSource(sizes.batch, sizes.q_len, sizes.k_len if sizes.is_cross else None)

    def layer_config(self, chosen: AttentionConfig) -> AttentionConfig:
        """Give the layer's configuration: the model's, with the free choices and the scale of another."""
        site = self.site()
        if site.problem:
            raise MhaError("layer", site.label, "a layer that we can compute", problem=f"{site.label}: {site.problem}")
        scale = site.config.scale if chosen.scale is None else chosen.scale
        return replace(site.config, scale=scale, **{name: getattr(chosen, name) for name in FREE})


@dataclass(frozen=True)
class CheckpointSource:
    """One attention layer of a checkpoint file, on an embedded text.

    Args:
        checkpoint: key of an uploaded file, or a path.
        layer: number of the layer among those found in it.
        num_heads: used where the number of heads does not follow from the file.
        replaced: matrices of the layer that the experiment's initialisation replaces.
        words: the text and how it is embedded.

    Raises:
        MhaError: a value that is none. Whether the file is there is asked when it is needed.
    """

    checkpoint: str
    layer: int = 0
    num_heads: int = 8
    replaced: tuple[str, ...] = ()
    words: TextSource = field(default_factory=TextSource)

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str):
            raise MhaError("checkpoint", self.checkpoint, "the key of an uploaded file, or a path")
        require_int("checkpoint_layer", self.layer, 0, MAX_LAYERS)
        require_int("num_heads", self.num_heads, 1, MAX_HEADS)
        if not self.checkpoint.strip():
            problem = "no checkpoint is chosen: page Real models takes uploads, the command line a path as --checkpoint"
            raise MhaError("checkpoint", "", "a checkpoint", [Suggestion.of(source="text")], problem=problem)
        object.__setattr__(self, "replaced", require_names("replaced", self.replaced, TARGETS))

    def sizes(self) -> Sizes:
        """Find the layer's sizes: those of the text."""
        return measure(self.words)

    def title(self) -> str:
        """Name the file and the layer."""
        checkpoint, layers = _open(self.checkpoint, _age(self.checkpoint))
        return f"{checkpoint.name}, {layers[self.layer].name or 'its only layer'}"

    def as_text(self) -> TextSource:
        """Give the text it reads."""
        return self.words

    stand_in = as_text

    def read(self) -> tuple[AttentionConfig, AttentionWeights]:
        """Read the layer from the file.

        Raises:
            MhaError: field "checkpoint", "checkpoint_layer" or "num_heads".
        """
        from mha_core.sources.families import read_weights

        checkpoint, layers = _open(self.checkpoint, _age(self.checkpoint))
        if self.layer >= len(layers):
            problem = f"{checkpoint.name} has {len(layers)} attention layers; there is no number {self.layer}"
            raise MhaError("checkpoint_layer", self.layer, f"below {len(layers)}", problem=problem)
        found = layers[self.layer]
        return read_weights(found, checkpoint.tensor, None if found.num_heads else self.num_heads)

    def layer_config(self, chosen: AttentionConfig) -> AttentionConfig:
        """Give the layer's configuration: the file's, with the free choices, scale and positions of another."""
        config, _ = self.read()
        kept = {name: getattr(chosen, name) for name in (*FREE, "scale", "rope_theta")}
        return replace(config, **kept)


def _location(checkpoint: str) -> Path:
    """Find a file: by the key of an upload, else by its path."""
    from mha_core.sources.checkpoints.store import KEY_LENGTH, kept

    is_key = len(checkpoint) == KEY_LENGTH and set(checkpoint) <= set("0123456789abcdef")
    return kept(checkpoint) if is_key else Path(checkpoint)


def _age(checkpoint: str) -> int:
    path = _location(checkpoint)
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):  # not there, or a name that no file can have: opening it says so
        return 0


@functools.lru_cache(maxsize=8)
def _open(checkpoint: str, age: int) -> tuple[Checkpoint, tuple[FoundLayer, ...]]:
    from mha_core.sources.checkpoints.file import open_checkpoint
    from mha_core.sources.families import find_layers

    opened = open_checkpoint(_location(checkpoint))
    return opened, find_layers(opened.shapes, opened.config)
