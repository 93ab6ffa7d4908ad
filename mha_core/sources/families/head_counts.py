"""How many heads a found layer has: from tables of the file that are per head, from a config, or not at all.

The matrices do not say it: any H that divides their rows gives the same shapes. Every claim is therefore checked
against the shapes, and one that does not fit is named and not used.

Letters: E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mha_core.config import MAX_HEADS

USUAL_HEAD_DIMS = (64, 128, 80, 96, 32, 40, 48, 72, 256, 16, 112, 160, 192, 8)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """What one source says about a layer: H or D or both, and how sure it is (a rotary table may cover part of D)."""

    source: str
    heads: int | None = None
    head_dim: int | None = None


@dataclass(frozen=True)
class HeadCounts:
    """H, Hkv, D, or None each where they do not follow; the reasons; and every H that fits, most likely first."""

    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    evidence: tuple[str, ...]
    possible: tuple[int, ...]


def share_rows(q_rows: int, kv_rows: int, heads: int) -> tuple[int, int] | None:
    """Divide the rows among `heads`: (Hkv, D), or None where they do not divide evenly."""
    if heads < 1 or q_rows < heads or kv_rows < 1 or q_rows % heads:
        return None
    head_dim = q_rows // heads
    kv_heads, rest = divmod(kv_rows, head_dim)
    return (kv_heads, head_dim) if not rest and heads % kv_heads == 0 else None


@functools.lru_cache(maxsize=256)  # the layers of a model are alike
def possible_heads(q_rows: int, kv_rows: int) -> tuple[int, ...]:
    """Give every H that fits the rows: first those with a usual head_dim, 64 before all."""

    def likelihood(heads: int) -> tuple[int, float]:
        head_dim = q_rows // heads
        known = head_dim in USUAL_HEAD_DIMS
        rank = USUAL_HEAD_DIMS.index(head_dim) if known else len(USUAL_HEAD_DIMS)
        return rank, abs(math.log(head_dim / 64))

    fitting = (heads for heads in range(1, min(q_rows, MAX_HEADS) + 1) if share_rows(q_rows, kv_rows, heads))
    return tuple(sorted(fitting, key=likelihood))


def count_heads(q_rows: int, kv_rows: int, claims: Sequence[Claim]) -> HeadCounts:
    """Take the first claim that fits the rows; say what each of the others says."""
    possible = possible_heads(q_rows, kv_rows)
    chosen: tuple[int, int, int] | None = None
    evidence = []
    for claim in claims:
        heads = claim.heads or (q_rows // claim.head_dim if claim.head_dim else 0)
        shared = share_rows(q_rows, kv_rows, heads)
        if shared is None or claim.head_dim not in (None, shared[1]):
            said = [f"num_heads {claim.heads}"] if claim.heads else []
            said += [f"head_dim {claim.head_dim}"] if claim.head_dim else []
            rows = f"{q_rows} rows of q and {kv_rows} of k and v"
            evidence.append(f"{claim.source}: {' and '.join(said)} does not fit {rows}; not used.")
        elif chosen is None:
            chosen = (heads, *shared)
            follows = f"num_heads {heads}, num_kv_heads {shared[0]}, head_dim {shared[1]}"
            evidence.append(f"{claim.source}: {follows}.")
        elif chosen[0] != heads:
            evidence.append(f"{claim.source}: num_heads {heads}, against the {chosen[0]} above; not used.")
    if chosen is None:
        shown = ", ".join(map(str, possible[:6])) or "none"
        evidence.append(f"Head counts are not in the weights; num_heads that fit the shapes: {shown}.")
        return HeadCounts(None, None, None, tuple(evidence), possible)
    first = (chosen[0], *(heads for heads in possible if heads != chosen[0]))
    return HeadCounts(*chosen, tuple(evidence), first)


# Tables with one row per head or one entry per channel of a head: number of axes, axis of H, axis of D.
_TABLES: dict[str, tuple[int, int | None, int | None]] = {
    "relative_attention_bias": (2, 1, None),  # T5: (buckets, H)
    "relative_position_bias_table": (2, 1, None),  # Swin, BEiT: (offsets, H)
    "attn_rel_b": (2, 1, None),  # T5 in GGUF
    "logit_scale": (3, 0, None),  # Swin v2: (H, 1, 1)
    "sinks": (1, 0, None),  # gpt-oss: (H,)
    "pos_bias_u": (2, 0, 1),  # Conformer: (H, D)
    "r_w_bias": (2, 0, 1),  # Transformer-XL: (H, D)
    "mem_k": (3, None, 2),  # x-transformers: (Hkv, memories, D)
    "rel_pos_h": (2, None, 1),  # SAM, MViT: (offsets, D)
    **dict.fromkeys(("q_norm", "norm_q", "q_layernorm", "query_norm", "attn_q_norm"), (1, None, 0)),
}
_HOLDERS = re.compile(r"(\.|^)(rotary_emb|rotary_pos_emb|rotary|rope|rel_pos|relative_position_bias|pos_emb)$")


def _stack_of(path: str) -> str:
    """What stands before the first number: the stack of layers that shares one table, as T5's encoder does."""
    parts = path.split(".")
    numbered = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0]]) if numbered else ""


@dataclass
class HeadTables:
    """Tables of a file that are per head, by the module they belong to."""

    exact: dict[str, list[Claim]] = field(default_factory=dict)
    stacks: dict[str, list[Claim]] = field(default_factory=dict)
    rotary: dict[str, list[Claim]] = field(default_factory=dict)

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> HeadTables:
        """Look for them among the names of a file."""
        tables = cls()
        for name, shape in shapes.items():
            tables._add(name, shape)
        return tables

    def _add(self, name: str, shape: Shape) -> None:
        holder, _, last = name.removesuffix(".weight").rpartition(".")
        place = _HOLDERS.sub("", holder)
        if last in _TABLES:
            axes, heads, dim = _TABLES[last]
            if len(shape) != axes or 0 in shape:
                return
            claim = Claim(
                f"{last} is {shape}",
                None if heads is None else shape[heads],
                None if dim is None else shape[dim],
            )
            self.exact.setdefault(place, []).append(claim)
            if stack := _stack_of(name):
                self.stacks.setdefault(stack, [claim])
        elif shape and 0 not in shape and (last.endswith("inv_freq") or (last == "freqs" and place != holder)):
            claim = Claim(f"The rotary table {last} has {shape[-1]} angles, two channels each", None, 2 * shape[-1])
            self.rotary.setdefault(place, [claim])

    def claims(self, layer: str, q_rows: int) -> Iterator[Claim]:
        """Give what the nearest tables say; a norm as long as q itself is over all heads and says nothing."""
        found = next(_upwards(self.exact, layer), None) or self.stacks.get(_stack_of(layer), [])
        return (claim for claim in found if claim.heads or claim.head_dim != q_rows)

    def rotary_claims(self, layer: str) -> list[Claim]:
        """Give what the nearest rotary table says, if it turns whole heads."""
        return next(_upwards(self.rotary, layer), [])


def _upwards(tables: dict[str, list[Claim]], layer: str) -> Iterator[list[Claim]]:
    """Tables of a module and of those around it, nearest first."""
    while tables:
        if layer in tables:
            yield tables[layer]
        if not layer:
            return
        layer = layer.rpartition(".")[0]


_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "nhead", "heads", "attention_heads", "num_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_heads")
_HEAD_DIM = ("head_dim", "d_kv", "dim_head", "head_size", "kv_channels", "d_head", "attention_head_size")
_WIDTH = ("hidden_size", "d_model", "n_embd", "n_embed", "embed_dim", "dim", "width", "hidden_dim", "model_dim")


def _first(config: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, int] | None:
    """The first of `keys` that holds a positive whole number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return key, value
    return None


def _nested(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The config and those inside it, as CLIP's text_config; innermost first."""
    inner = [(str(key), value) for key, value in config.items() if isinstance(value, Mapping)][:16]
    return [*inner, ("", config)]


def _name_fits(key: str, layer: str) -> bool:
    word = key.removesuffix("_config").removesuffix("_cfg")
    return bool(word) and any(part.startswith(word) for part in layer.split("."))


def config_claims(
    config: Mapping[str, Any], layer: str, widths: frozenset[int], kv_of: Callable[[int], int | None]
) -> tuple[list[Claim], list[str]]:
    """Read a layer's head counts in a config.

    Args:
        config: of the model, with the names of any library; others may be nested in it.
        layer: its name, to choose between encoder and decoder, text and vision.
        widths: of the layer's inputs; a config for another width is not used.
        kv_of: gives the Hkv of H heads by the shapes, or None.

    Returns:
        Claims, and sentences on what was not used.
    """
    side = next((part for part in layer.split(".") if part in ("encoder", "decoder")), "")
    head_keys = ((f"{side}_attention_heads",) if side else ()) + _HEADS
    notes, fitting = [], []
    for key, inner in _nested(config):
        heads, dim, width = _first(inner, head_keys), _first(inner, _HEAD_DIM), _first(inner, _WIDTH)
        if heads is None and dim is None:
            continue
        where = f"The config's {key}" if key else "The config"
        if width and width[1] not in widths:
            spelled = ", ".join(map(str, sorted(widths)))
            notes.append(f"{where} is for width {width[1]}, this layer has {spelled}; not used.")
            continue
        said = " and ".join(f"{name} {value}" for name, value in filter(None, (heads, dim)))
        claim = Claim(f"{where} says {said}", heads and heads[1], dim and dim[1])
        fitting.append((_name_fits(key, layer), claim, inner))
    if not fitting:
        return [], notes
    _, claim, inner = max(fitting, key=lambda found: found[0])
    notes = []
    kv_heads, kv_shapes = _first(inner, _KV_HEADS), kv_of(claim.heads) if claim.heads else None
    is_old_falcon = inner.get("multi_query") is True and not inner.get("new_decoder_architecture")
    if kv_heads and kv_shapes and kv_heads[1] != kv_shapes and not is_old_falcon:
        notes.append(
            f"The config says {kv_heads[0]} {kv_heads[1]}, but the shapes give {kv_shapes}; the shapes are used."
        )
    return [claim], notes
