"""Every choice of an experiment as one flat record: its name, kind, range and meaning.

The names are those of the query string, the command line and the widgets; this table is what they are all made from.
It knows how to read a value from text and to write it back, exactly; what the values mean together is decided by
`mha_core.experiment`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from mha_core import config, init_schemes, masks
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.packed_text import pack_text, unpack_text
from mha_core.sources import inputs, tokens, trained

Kind = Literal["int", "float", "bool", "choice", "flags", "ints", "heads", "text", "matrix"]
Dtype = Literal["float32", "float64", "bfloat16", "float16", "autocast"]
TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "autocast": torch.float32,
}


@dataclass(frozen=True)
class Field:
    """One choice.

    Args:
        name: in links, JSON fields, widgets; `--like-this` on the command line.
        group: input, model, mask, init or engine.
        default: value when nothing is said.
        help: one sentence for the widget and the command line.
        choices: allowed words of a choice or flags field.
        minimum, maximum: bounds of a number.
        optional: whether None ("none") is a value.
    """

    name: str
    group: str
    kind: Kind
    default: FieldValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 0
    optional: bool = False

    def read(self, text: str) -> FieldValue:
        """Read a value as it stands in a link or on the command line.

        Raises:
            MhaError: it is not a value of this field.
        """
        if self.optional and text.lower() in ("none", ""):
            return None
        return _READERS[self.kind](self, text)

    def write(self, value: FieldValue) -> str:
        """Write a value so that `read` gives it back exactly."""
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return pack_text("/".join(value)) if self.kind == "matrix" else (",".join(value) or "none")
        return pack_text(value) if isinstance(value, str) and self.kind == "text" else str(value)

    def check(self, value: FieldValue) -> None:
        """Raise MhaError unless the value alone is of this field's kind and range."""
        self.read(self.write(value))


def _read_int(field: Field, text: str) -> FieldValue:
    try:
        value = int(text)
    except ValueError:
        raise MhaError(field.name, text, f"a whole number from {field.minimum:.0f} to {field.maximum:.0f}") from None
    config.require_int(field.name, value, int(field.minimum), int(field.maximum))
    return value


def _read_float(field: Field, text: str) -> FieldValue:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not field.minimum <= value <= field.maximum:
        raise MhaError(field.name, text, f"a number from {field.minimum:g} to {field.maximum:g}")
    return value


def _read_bool(field: Field, text: str) -> FieldValue:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in words:
        raise MhaError(field.name, text, "true or false")
    return words[text.lower()]


def _read_choice(field: Field, text: str) -> FieldValue:
    config.require_choice(field.name, text, field.choices)
    return text


def _read_flags(field: Field, text: str) -> FieldValue:
    chosen = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    for word in chosen:
        config.require_choice(field.name, word, field.choices)
    return tuple(word for word in field.choices if word in chosen)


def _read_ints(field: Field, text: str) -> FieldValue:
    """Whole numbers with commas, kept as their digits."""
    numbers = sorted({_read_int(field, word) for word in text.split(",") if word.strip() not in ("", "none")})  # type: ignore[type-var]
    return tuple(map(str, numbers))


def _read_text(field: Field, text: str) -> FieldValue:
    value = unpack_text(field.name, text)
    if len(value) > tokens.MAX_CHARACTERS:
        shorter = Suggestion(((field.name, value[:10_000]),), "the first 10,000 characters")
        raise MhaError(field.name, f"{len(value):,} characters", f"at most {tokens.MAX_CHARACTERS:,}", [shorter])
    return value


_READERS: dict[str, Callable[[Field, str], FieldValue]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "choice": _read_choice,
    "flags": _read_flags,
    "ints": _read_ints,
    "text": _read_text,
    "heads": lambda field, text: trained.parse_heads([w for w in text.split(",") if w.strip() not in ("", "none")]),
    "matrix": lambda field, text: masks.parse_custom(unpack_text(field.name, text)),
}


def _int(
    name: str, group: str, default: int | None, low: int, high: int, help_: str, *, optional: bool = False
) -> Field:
    return Field(name, group, "int", default, help_, minimum=low, maximum=high, optional=optional)


def _float(
    name: str, group: str, default: float | None, low: float, high: float, help_: str, *, optional: bool = False
) -> Field:
    return Field(name, group, "float", default, help_, minimum=low, maximum=high, optional=optional)


def _choice(name: str, group: str, choices: tuple[str, ...], help_: str, default: str | None = None) -> Field:
    return Field(name, group, "choice", default or choices[0], help_, choices)


_E, _H = config.MAX_EMBED_DIM, config.MAX_HEADS
FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        _choice("source", "input", ("text", "random", "pretrained", "checkpoint"), "where the input comes from"),
        Field("text", "input", "text", tokens.DEFAULT_TEXT, "one sequence per line"),
        Field("memory_text", "input", "text", None, "a second text to attend to: cross-attention", optional=True),
        _choice("tokenizer", "input", get_args(tokens.Tokenizer), "what one token is"),
        _choice(
            "embeddings",
            "input",
            get_args(inputs.Embeddings),
            "a random vector per token, or the raw row of a model's token table: no position, no layer norm",
        ),
        _int("batch", "input", 2, 1, inputs.MAX_BATCH, "B, number of random sequences"),
        _int("q_len", "input", 16, 1, inputs.MAX_LENGTH, "Sq, number of random queries"),
        _int(
            "k_len",
            "input",
            None,
            1,
            inputs.MAX_LENGTH,
            "Sk, number of random keys; none = self-attention",
            optional=True,
        ),
        _choice("distribution", "input", get_args(inputs.Distribution), "how random inputs are drawn"),
        Field("model", "input", "text", "minilm", "a trained model: minilm, smollm2, a folder, or a name on the hub"),
        _int("layer", "input", 0, 0, trained.MAX_LAYERS, "attention layer of the trained model, in the order it runs"),
        Field("own_mask", "input", "bool", True, "keep the trained model's own mask"),
        Field("replaced", "input", "flags", (), "matrices that the scheme draws anew", init_schemes.TARGETS),
        Field("muted", "input", "heads", (), "heads of the trained model that say nothing, as 5.1,5.7 (layer.head)"),
        _choice("reach", "input", get_args(trained.Reach), "whether edits change this layer, or all of its kind"),
        Field("checkpoint", "input", "text", "", "a checkpoint file: the key of an upload, or a path"),
        _int("checkpoint_layer", "input", 0, 0, trained.MAX_LAYERS, "attention layer among those found in the file"),
        _choice("positions", "input", get_args(inputs.Positions), "how a token knows its place"),
        _int("embed_dim", "model", 512, 1, _E, "E, width of the model"),
        _int("num_heads", "model", 8, 1, _H, "H, query heads; must divide embed_dim, if D is not given"),
        _int(
            "num_kv_heads",
            "model",
            None,
            1,
            _H,
            "Hkv, key/value heads; none = num_heads, 1 = multi-query",
            optional=True,
        ),
        _int("head_size", "model", None, 1, _E, "D, width of a head; none = embed_dim / num_heads", optional=True),
        _int("kdim", "model", None, 1, _E, "width of the key input; none = embed_dim", optional=True),
        _int("vdim", "model", None, 1, _E, "width of the value input; none = embed_dim", optional=True),
        Field("bias", "model", "bool", True, "add a bias in the four projections"),
        _float("dropout", "model", 0.0, 0.0, 0.99, "share of weights dropped, as in training"),
        _float("scale", "model", None, -1e6, 1e6, "factor on q·k; none = 1/sqrt(head_dim)", optional=True),
        _float("rope_theta", "model", None, 1.0, 1e9, "base of rotary positions; none = no rotation", optional=True),
        Field("mask", "mask", "flags", (), "masks, joined by and", tuple(masks.MASKS)),
        _int("window", "mask", 2, 0, masks.MAX_WINDOW, "w of the local mask, in tokens"),
        _choice("direction", "mask", get_args(masks.Direction), "to which sides the window reaches"),
        _choice("alignment", "mask", get_args(masks.Alignment), "where the diagonal lies when Sq and Sk differ"),
        _choice("fill", "mask", get_args(masks.Fill), "what replaces a hidden score"),
        Field("custom_mask", "mask", "matrix", None, "rows of 0 and 1, split by /", optional=True),
        _choice("init", "init", tuple(init_schemes.INIT_SCHEMES), "initialisation scheme of the targets"),
        _float("gain", "init", 1.0, 0.0, 1e4, "factor on the targets' weights"),
        _float("init_std", "init", 0.02, 0.0, 1e3, "std of normal and trunc_normal; value of constant"),
        Field("init_targets", "init", "flags", init_schemes.TARGETS, "matrices the scheme fills", init_schemes.TARGETS),
        _choice("init_bias", "init", get_args(init_schemes.InitBias), "how biases start"),
        Field("init_packed", "init", "bool", False, "draw a fused q, k, v as one matrix"),
        _choice("projection", "engine", config.CHOICES["projection"], "three q, k, v matrices, or one"),
        _choice("qkv_layout", "engine", config.CHOICES["qkv_layout"], "order inside the fused matrix"),
        _choice("head_split", "engine", config.CHOICES["head_split"], "view + permute, or einops"),
        _choice("kernel", "engine", config.CHOICES["kernel"], "explicit S x S, chunked, or torch's fused SDPA"),
        _choice("dtype", "engine", get_args(Dtype), "number format; autocast mixes float32 and bfloat16"),
        _int("seed", "engine", 0, 0, init_schemes.MAX_SEED, "seed of weights, embeddings and dropout"),
    )
}
DEFAULTS: dict[str, FieldValue] = {name: field.default for name, field in FIELDS.items()}


def read_query(
    query: Mapping[str, str], fields: Mapping[str, Field] = FIELDS
) -> tuple[dict[str, FieldValue], list[str]]:
    """Read the fields of a link, one by one.

    Args:
        query: decoded names and values.
        fields: the fields it may speak of.

    Returns:
        Every field (defaults where nothing or nothing good was said), and one sentence per unknown or bad entry.
    """
    values, problems = {name: field.default for name, field in fields.items()}, []
    for name, text in query.items():
        if name not in fields:
            problems.append(f"{name[:40]!r} is not a setting of this product; it is left out.")
            continue
        try:
            values[name] = fields[name].read(text)
        except MhaError as error:
            default = fields[name].write(fields[name].default)
            problems.append(f"{error.problem}; the default {default[:40]} is used.")
    return values, problems


def write_query(values: Mapping[str, FieldValue], fields: Mapping[str, Field] = FIELDS) -> dict[str, str]:
    """Write the fields that differ from their defaults."""
    return {name: fields[name].write(value) for name, value in values.items() if value != fields[name].default}
