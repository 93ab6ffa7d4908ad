"""What an experiment must have for a mistake to show, need by need, and the fields that provide it.

Letters: B sequences, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mha_core.choices import Experiment
from mha_core.errors import FieldValue
from mha_core.experiment import Run, needed_bytes, run
from mha_core.masks import parse_custom
from mha_core.sources.inputs import RandomSource, Sizes, smaller_inputs
from mha_core.sources.tokens import DEFAULT_TEXT
from mha_core.sources.trained import CheckpointSource, PretrainedSource

Fields = dict[str, FieldValue]
MAX_BYTES = 40 * 2**20  # of one run of the layer; the clinic keeps about eight of them while it works
SECOND_LINE = "It slept"
LONGER_TEXT = "Das Tier überquerte die Straße nicht, weil es an diesem Abend viel zu müde war"
HALF_LARGEST = 65_504.0
WEAK_FILL, BEYOND_WEAK_FILL = -1e4, 5e4
FITTING: Fields = {"embed_dim": 64, "num_heads": 4, "num_kv_heads": None, "head_size": None, "kdim": None, "vdim": None}


@dataclass(frozen=True)
class Need:
    """One need: in words, how to tell that it is met, and the fields that meet it."""

    words: str
    met: Callable[[Experiment, Sizes], bool]
    change: Callable[[Experiment, Sizes], Fields]


def _with_mask(experiment: Experiment, *kinds: str) -> tuple[str, ...]:
    order = ("padding", "causal", "local")  # a custom one may not fit
    return tuple(kind for kind in order if kind in {*experiment.mask.kinds, *kinds})


def _heads(experiment: Experiment, _: Sizes) -> Fields:
    config = experiment.attention
    fitting = [h for h in (4, 8, 2, 3, 5, 6, 7, 11, 13) if config.embed_dim % h == 0 and config.embed_dim > h]
    if config.head_size is not None:
        return {"num_heads": 4, "num_kv_heads": None}
    return {"num_heads": fitting[0], "num_kv_heads": None} if fitting else FITTING


def _lines(experiment: Experiment) -> list[str]:
    text = str(experiment.to_fields().get("text", DEFAULT_TEXT))
    return [line for line in text.splitlines() if line.strip()]


def _sequences(experiment: Experiment, sizes: Sizes) -> Fields:
    if isinstance(experiment.source, RandomSource):
        return {"batch": 2}
    memory = experiment.to_fields().get("memory_text")
    second: Fields = {} if memory is None else {"memory_text": str(memory).splitlines()[0]}
    return second | {"text": f"{_lines(experiment)[0]}\n{SECOND_LINE}"}


def _has_padding(experiment: Experiment, sizes: Sizes) -> bool:
    lengths = sizes.k_tokens.lengths
    return "padding" in experiment.mask.kinds and len(set(lengths)) > 1


def _padding(experiment: Experiment, sizes: Sizes) -> Fields:
    mask: Fields = {"mask": _with_mask(experiment, "padding")}
    if len(set(sizes.k_tokens.lengths)) > 1:
        return mask
    words: Fields = {} if not isinstance(experiment.source, RandomSource) else {"source": "text"}
    return mask | words | {"text": f"{_lines(experiment)[0]} and lay down\n{SECOND_LINE}", "memory_text": None}


def _is_cross(experiment: Experiment, sizes: Sizes) -> bool:
    return sizes.is_cross and 1 < sizes.q_len < sizes.k_len


def _cross(experiment: Experiment, sizes: Sizes) -> Fields:
    if isinstance(experiment.source, RandomSource):
        q_len = max(2, sizes.q_len)
        return {"q_len": q_len, "k_len": q_len + 3}
    line = " ".join(_lines(experiment)[0].split()[:8])
    return {"text": line if len(line.split()) > 1 else DEFAULT_TEXT, "memory_text": LONGER_TEXT}


def _is_causal(experiment: Experiment, sizes: Sizes) -> bool:
    mask = experiment.mask
    fits = mask.alignment == "bottom_right" or sizes.q_len == sizes.k_len
    return "causal" in mask.kinds and set(mask.kinds) <= {"padding", "causal"} and fits


def _causal(experiment: Experiment, sizes: Sizes) -> Fields:
    kept = tuple(kind for kind in ("padding", "causal") if kind in {*experiment.mask.kinds, "causal"})
    return {"mask": kept, "alignment": "bottom_right"}


def _grouped(experiment: Experiment, _: Sizes) -> Fields:
    heads = experiment.attention.num_heads
    groups = [kv for kv in range(2, heads) if heads % kv == 0]
    if groups:
        return {"num_kv_heads": groups[0]}
    wider: Fields = {} if experiment.attention.embed_dim % 4 == 0 else {"embed_dim": 64}
    return wider | {"num_heads": 4, "num_kv_heads": 2}


def _rotary(experiment: Experiment, _: Sizes) -> Fields:
    even = experiment.attention.head_dim % 2 == 0
    return {"positions": "rotary"} | ({} if even else FITTING)


def _batch_is_heads(experiment: Experiment, sizes: Sizes) -> Fields:
    fits = experiment.attention.embed_dim % sizes.batch == 0 and experiment.attention.head_size is None
    wider: Fields = {} if fits else {"embed_dim": 32 * sizes.batch}
    return wider | {"num_heads": sizes.batch, "num_kv_heads": None}


def _has_empty_row(experiment: Experiment, sizes: Sizes) -> bool:
    rows = parse_custom(experiment.mask.custom) if experiment.mask.custom else ()
    return "custom" in experiment.mask.kinds and any("1" not in row for row in rows)


def _empty_row(experiment: Experiment, sizes: Sizes) -> Fields:
    rows = ("1" * sizes.k_len,) * (sizes.q_len - 1)
    short: Fields = {"source": "text", "text": DEFAULT_TEXT, "memory_text": None} if sizes.q_len > 64 else {}
    length = len(DEFAULT_TEXT.split())
    rows, width = (("1" * length,) * (length - 1), length) if short else (rows, sizes.k_len)
    return short | {"mask": ("custom",), "custom_mask": (*rows, "0" * width), "tokenizer": "word"}


def _as_float32(experiment: Experiment) -> Run:
    return run(Experiment.from_fields(experiment.to_fields() | {"dtype": "float32"}))


def _largest_score(experiment: Experiment) -> float:
    """Give the largest scaled score, finite ones only, as float32 finds it."""
    scores = _as_float32(experiment).scores.abs()
    return float(scores[scores.isfinite()].max())


def _beaten_by_weak_fill(experiment: Experiment, _: Sizes) -> bool:
    """Say whether some row with hidden keys has no visible score above -1e4."""
    done = _as_float32(experiment)
    highest = done.scores.masked_fill(~done.allowed, -math.inf).amax(-1)
    return bool(((highest < 1.1 * WEAK_FILL) & done.allowed.any(-1) & ~done.allowed.all(-1)).any())


def _lower_scores(experiment: Experiment, _: Sizes) -> Fields:
    """Make scores large; where they are and none of the rows is low, draw other weights."""
    if _largest_score(experiment) < 0.9 * BEYOND_WEAK_FILL:
        return _gain_for(BEYOND_WEAK_FILL, experiment)
    return {"seed": (experiment.seed + 1) % 1_000_000}


def _gain_for(target: float, experiment: Experiment) -> Fields:
    factor = math.sqrt(target / max(_largest_score(experiment), 1e-9))
    return {"gain": round(min(experiment.init.gain * factor, 9e3), 3), "init_targets": ("q", "k")}


def _half_room(experiment: Experiment) -> tuple[float, float]:
    """Give the scaled scores between which q·k alone is too large for float16."""
    return HALF_LARGEST * experiment.attention.softmax_scale * 1.05, HALF_LARGEST / 1.05


def _raw_overflows(experiment: Experiment, _: Sizes) -> bool:
    least, most = _half_room(experiment)
    return least <= _largest_score(experiment) <= most


def _raw_overflow(experiment: Experiment, _: Sizes) -> Fields:
    least, most = _half_room(experiment)
    if least >= most:
        return {**FITTING, "scale": None}
    return _gain_for(math.sqrt(least * most), experiment)


def _is_small(experiment: Experiment, sizes: Sizes) -> bool:
    return needed_bytes(experiment, sizes) <= MAX_BYTES


def _small(experiment: Experiment, sizes: Sizes) -> Fields:
    keep = 0.9 * math.sqrt(MAX_BYTES / needed_bytes(experiment, sizes))
    config = experiment.attention
    if config.embed_dim > 1024:
        fits = config.num_heads <= 16 and config.head_size is None
        return {"embed_dim": 64 * config.num_heads, "kdim": None, "vdim": None} if fits else FITTING
    shorter = smaller_inputs(experiment.source, sizes, keep)
    return dict(shorter[0].changes) if shorter else {"source": "text"}


def _is_own(experiment: Experiment, _: Sizes) -> bool:
    return not isinstance(experiment.source, PretrainedSource | CheckpointSource)


NEEDS: dict[str, Need] = {
    "small": Need("matrices that can be run many times", _is_small, _small),
    "own": Need("a layer of its own, not a trained one", _is_own, lambda e, s: {"source": "text"}),
    "self": Need("self-attention", lambda e, s: not s.is_cross, lambda e, s: {"memory_text": None, "k_len": None}),
    "square_inputs": Need(
        "keys and values as wide as queries",
        lambda e, s: e.attention.key_dim == e.attention.value_dim == e.attention.embed_dim,
        lambda e, s: {"kdim": None, "vdim": None},
    ),
    "tied": Need(
        "heads that fill the width: H·D = E",
        lambda e, s: e.attention.joined_dim == e.attention.embed_dim,
        lambda e, s: {"head_size": None},
    ),
    "untied": Need(
        "heads of a width of their own: H·D ≠ E",
        lambda e, s: e.attention.joined_dim != e.attention.embed_dim,
        lambda e, s: {"head_size": e.attention.head_dim + 2},
    ),
    "ungrouped": Need(
        "as many key/value heads as heads",
        lambda e, s: e.attention.kv_heads == e.attention.num_heads,
        lambda e, s: {"num_kv_heads": None},
    ),
    "unrotated": Need(
        "no rotary positions",
        lambda e, s: e.attention.rope_theta is None,
        lambda e, s: {"positions": "none", "rope_theta": None},
    ),
    "heads": Need("more than one head", lambda e, s: e.attention.num_heads > 1, _heads),
    "wide_heads": Need("heads wider than one channel", lambda e, s: e.attention.head_dim > 1, lambda e, s: FITTING),
    "grouped": Need(
        "grouped key/value heads: 1 < Hkv < H",
        lambda e, s: 1 < e.attention.kv_heads < e.attention.num_heads,
        _grouped,
    ),
    "tokens": Need(
        "more than one token", lambda e, s: s.k_len > 1 and s.q_len > 1, lambda e, s: {"q_len": 7, "text": DEFAULT_TEXT}
    ),
    "sequences": Need("more than one sequence", lambda e, s: s.batch > 1, _sequences),
    "cross": Need("cross-attention with more keys than queries", _is_cross, _cross),
    "padding": Need("padded sequences and a padding mask", _has_padding, _padding),
    "causal": Need("a causal mask", _is_causal, _causal),
    "unmasked": Need("no mask", lambda e, s: not e.mask.kinds, lambda e, s: {"mask": ()}),
    "only_padding": Need(
        "no mask but padding", lambda e, s: e.mask.kinds == ("padding",), lambda e, s: {"mask": ("padding",)}
    ),
    "only_causal": Need(
        "no mask but the causal one", lambda e, s: e.mask.kinds == ("causal",), lambda e, s: {"mask": ("causal",)}
    ),
    "empty_row": Need("a query that may see no key", _has_empty_row, _empty_row),
    "batch_is_heads": Need(
        "as many sequences as heads", lambda e, s: s.batch == e.attention.num_heads, _batch_is_heads
    ),
    "rotary": Need("rotary positions", lambda e, s: e.attention.rope_theta is not None, _rotary),
    "dropout": Need(
        "dropout", lambda e, s: e.attention.dropout > 0, lambda e, s: {"dropout": 0.2, "kernel": "explicit"}
    ),
    "half": Need("float16", lambda e, s: e.dtype == "float16", lambda e, s: {"dtype": "float16"}),
    "low_precision": Need(
        "bfloat16 or float16", lambda e, s: e.dtype in ("bfloat16", "float16"), lambda e, s: {"dtype": "bfloat16"}
    ),
    "not_double": Need("a format below float64", lambda e, s: e.dtype != "float64", lambda e, s: {"dtype": "float32"}),
    "low_scores": Need(
        "rows whose visible scores all lie below −10,000",
        _beaten_by_weak_fill,
        _lower_scores,
    ),
    "raw_overflow": Need("q·k beyond 65,504 before it is scaled", _raw_overflows, _raw_overflow),
    "zero_fill": Need("hidden weights of exactly 0", lambda e, s: e.mask.fill == "zero", lambda e, s: {"fill": "zero"}),
}
ORDER = tuple(NEEDS)
