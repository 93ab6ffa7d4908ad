"""How known libraries name the tensors of attention, and which order they keep q, k and v in.

`FAMILIES` is the registry, in the order in which names are tried: first those that only one library uses, last
"generic", a small grammar of names that people give these matrices. Holds no sizes and no values.

Letters: E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mha_core.sources.families.found_layer import FilePacking

Shapes = Mapping[str, tuple[int, ...]]
ROLES: dict[int, tuple[str, ...]] = {2: ("qkv", "out"), 3: ("q", "kv", "out"), 4: ("q", "k", "v", "out")}
INPUT_ROLES = ("q", "k", "v", "kv", "qkv")


@dataclass(frozen=True)
class Group:
    """Tensors under one prefix that could be one attention layer.

    Attributes:
        prefix: what their names begin with. stem: what else their names share, as "attn" of attn_q and attn_k.
        tensors: role -> tensor name, biases included. shapes: of the whole file. config: the model's, or empty.
    """

    prefix: str
    stem: str
    tensors: Mapping[str, str]
    shapes: Shapes
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The layer's name."""
        return ".".join(part for part in (self.prefix, self.stem) if part)

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of a role's tensor; empty where there is none."""
        return self.shapes[self.tensors[role]] if role in self.tensors else ()

    def is_three_squares(self) -> bool:
        """Whether the fused matrix has three times as many rows as columns."""
        shape = self.shape("qkv")
        return len(shape) == 2 and shape[0] == 3 * shape[1]

    def model_type(self) -> object:
        """Name of the model's kind in its config."""
        return self.config.get("model_type")


def _always(group: Group) -> bool:
    return True


@dataclass(frozen=True)
class Family:
    """One way of naming and packing.

    Attributes:
        name: key in FAMILIES. summary: whose names these are.
        names: spellings, each of 4 names (q, k, v, out), 3 (q, kv, out) or 2 (qkv, out), alternatives divided by "|".
        packing: order inside a fused matrix.
        parent: pattern for the end of the prefix.
        when: tells families with the same names apart.
        note: what is not certain about the order, or not in the weights.
        transposed: matrices are kept (in, out). whole_rotary: rotary tables are D / 2 long.
    """

    name: str
    summary: str
    names: tuple[str, ...] = ()
    packing: FilePacking = "stacked"
    parent: str = ""
    when: Callable[[Group], bool] = _always
    note: str = ""
    transposed: bool = False
    whole_rotary: bool = False

    def accepts(self, group: Group) -> bool:
        """Whether a group with these names is of this family."""
        return bool(re.search(self.parent, group.prefix)) and self.when(group)


def _is_whisper(group: Group) -> bool:
    return {"q_bias", "v_bias"} <= set(group.tensors) and "k_bias" not in group.tensors


def _is_chatglm(group: Group) -> bool:
    biases = "qkv_bias" in group.tensors and "out" in group.tensors and "out_bias" not in group.tensors
    return group.model_type() == "chatglm" or (biases and not group.is_three_squares())


def _is_bigcode(group: Group) -> bool:
    qkv, out = group.shape("qkv"), group.shape("out")
    multi_query = len(out) == 2 and out[0] == out[1] == qkv[1] < qkv[0] < 3 * qkv[1]
    return group.model_type() == "gpt_bigcode" or multi_query


_QKV_DENSE = "query_key_value dense"
_PROJ = "q_proj k_proj v_proj"
_SAME_NAMES = "BLOOM and Falcon share these names; {} is told from the other by its biases and its number of rows"

_REGISTRY = (
    Family(
        "torch",
        "torch.nn.MultiheadAttention",
        ("in_proj_weight out_proj", "q_proj_weight k_proj_weight v_proj_weight out_proj"),
    ),
    Family(
        "bert",
        "BERT, RoBERTa, ELECTRA and their relatives in transformers",
        ("self.query self.key self.value output.dense", "self.query_proj self.key_proj self.value_proj output.dense"),
    ),
    Family(
        "vit",
        "ViT in transformers",
        ("attention.query attention.key attention.value output.dense", f"{_PROJ} o_proj"),
        parent=r"(^|\.)attention$",
        when=lambda group: "out_bias" in group.tensors,
    ),
    Family("distilbert", "DistilBERT and XLM in transformers", ("q_lin k_lin v_lin out_lin",)),
    Family("albert", "ALBERT in transformers", ("query key value dense",)),
    Family(
        "gpt_bigcode",
        "GPT-BigCode (StarCoder) in transformers",
        ("c_attn c_proj",),
        "interleaved",
        when=_is_bigcode,
        note="with one key/value head the order is [q | k | v]; with as many as query heads it is per head",
    ),
    Family("nanogpt", "nanoGPT", ("c_attn c_proj",), when=Group.is_three_squares),
    Family("gpt2", "GPT-2 in transformers", ("q_attn c_attn c_proj", "c_attn c_proj"), transposed=True),
    Family("gpt_neox", "GPT-NeoX and Pythia in transformers", (_QKV_DENSE,), "interleaved", r"(^|\.)attention$"),
    Family(
        "chatglm",
        "ChatGLM",
        (_QKV_DENSE,),
        when=_is_chatglm,
        note="Falcon's grouped heads have these names too, in another order; ChatGLM is told by a bias on q, k, v only",
    ),
    Family(
        "bloom",
        "BLOOM in transformers",
        (_QKV_DENSE,),
        "interleaved",
        when=lambda group: "qkv_bias" in group.tensors and group.is_three_squares(),
        note=_SAME_NAMES.format("BLOOM"),
    ),
    Family(
        "falcon",
        "Falcon in transformers",
        (_QKV_DENSE,),
        "interleaved",
        note=_SAME_NAMES.format("Falcon") + "; k and v smaller than q may be one head of each or several groups",
        whole_rotary=True,
    ),
    Family("megatron", "Megatron-Core", ("linear_qkv linear_proj",), "interleaved"),
    Family(
        "t5",
        "T5 and its relatives in transformers",
        ("q k v o",),
        parent=r"(SelfAttention|EncDecAttention)$",
        note="T5 does not scale its scores (scale 1) and adds a relative position bias; neither is in these matrices",
    ),
    Family(
        "whisper",
        "Whisper, which has no bias on k",
        (f"{_PROJ} out_proj", "query key value out"),
        when=_is_whisper,
    ),
    Family("clip", "CLIP and SigLIP in transformers", (f"{_PROJ} out_proj",), parent=r"(text|vision)_model\."),
    Family("opt", "OPT, BART, GPT-J and their relatives in transformers", (f"{_PROJ} out_proj",)),
    Family(
        "llama",
        "LLaMA, Mistral, Qwen, Gemma and their relatives in transformers",
        (f"{_PROJ} o_proj",),
        whole_rotary=True,
    ),
    Family("phi", "Phi in transformers", (f"{_PROJ} dense",)),
    Family("phi3", "Phi-3 in transformers", ("qkv_proj o_proj",), whole_rotary=True),
    Family(
        "internlm2",
        "InternLM2",
        ("wqkv wo",),
        "interleaved",
        when=lambda group: group.model_type() == "internlm2",
        whole_rotary=True,
    ),
    Family("meta_llama", "Meta's own LLaMA", ("wq wk wv wo",), whole_rotary=True),
    Family("timm", "timm and the original ViT code", ("qkv proj", "q k v proj", "q kv proj")),
    Family(
        "x_transformers",
        "x-transformers, vit-pytorch and diffusers",
        (
            "to_qkv to_out|to_out.0",
            "to_q to_kv to_out|to_out.0",
            "to_q to_k to_v to_out|to_out.0",
        ),
    ),
    Family("mpt", "MPT and flash-attn", ("Wqkv out_proj|Wo", "Wq Wkv out_proj")),
    Family(
        "mha_lab",
        "this project",
        ("wq wk wv fc_out", "qkv_proj fc_out"),
        note="a fused matrix of this project may also be interleaved per head: qkv_layout is not in the weights",
    ),
    Family(
        "annotated",
        "The Annotated Transformer",
        ("linears.0 linears.1 linears.2 linears.3",),
        parent=r"(?i)att[^.]*$",
    ),
)
_BY_GRAMMAR = (
    Family("gguf", "GGUF files", parent=r"(^|\.)blk\.\d+$", whole_rotary=True),
    Family(
        "generic",
        "no library known here",
        note="the order [q | k | v] inside one matrix is a guess where there is such a matrix",
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in (*_REGISTRY, *_BY_GRAMMAR)}


def _index_tails() -> dict[str, list[tuple[int, int, str, int]]]:
    """Tail of a tensor's path -> (family, spelling, role, rank among alternatives) for every use of it."""
    tails: dict[str, list[tuple[int, int, str, int]]] = {}
    for at, family in enumerate(_REGISTRY):
        for spelling, names in enumerate(family.names):
            parts = names.split()
            for role, alternatives in zip(ROLES[len(parts)], parts, strict=True):
                for rank, tail in enumerate(alternatives.split("|")):
                    tails.setdefault(tail, []).append((at, spelling, role, rank))
    return tails


_TAILS = _index_tails()
_WORDS = {
    "q": "q query queries qs wq toqueries",
    "k": "k key keys ks wk tokeys",
    "v": "v value values vs wv tovalues",
    "kv": "kv wkv",
    "qkv": "qkv wqkv",
    "out": "o out output wo",
    "affix": "proj projection linear lin layer fc w weight dense to transform net matrix c in head heads",
    "other": "a b lora pos rel norm scale scales bias down up",  # a matrix with such a name is not q, k, v itself
}
_MEANING = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}
_WEAK_OUT = ("proj", "c_proj", "projection", "dense", "fc", "linear", "unify_heads", "unifyheads", "combine_heads", "w")
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_JOINED = {("q", "k", "v"): "qkv", ("k", "v"): "kv"}


def by_library(path: str) -> list[tuple[tuple[int, int, str], str, int]]:
    """Give every use that a library could make of a path: (family, spelling, prefix), role, rank."""
    parts = path.split(".")
    found = []
    for length in (1, 2):
        tail, prefix = ".".join(parts[-length:]), ".".join(parts[:-length])
        found += [((at, spelling, prefix), role, rank) for at, spelling, role, rank in _TAILS.get(tail, ())]
    return found


def registered(at: int) -> Family:
    """Give the family at a place of the registry."""
    return _REGISTRY[at]


def by_grammar(path: str) -> tuple[tuple[str, str], str, int] | None:
    """Read a path as people name these matrices: (prefix, stem), role, rank; or None."""
    parts = path.split(".")
    is_first = len(parts) > 1 and parts[-1] == "0"  # of a Sequential, as in to_out.0
    parts = parts[:-1] if is_first else parts
    prefix, last = ".".join(parts[:-1]), parts[-1]
    tokens = [token.lower() for token in _TOKEN.findall(last[:80])]
    meanings = [_MEANING.get(token, "stem") for token in tokens]
    roles = tuple(meaning for meaning in meanings if meaning not in ("affix", "other", "stem"))
    stem = "_".join(token for token, meaning in zip(tokens, meanings, strict=True) if meaning == "stem")
    role = roles[0] if len(roles) == 1 else _JOINED.get(roles)
    if is_first and role != "out":
        return None
    if role and "other" not in meanings:
        return (prefix, stem), role, 0
    return ((prefix, ""), "out", 1 + _WEAK_OUT.index(last)) if last in _WEAK_OUT else None


def family_by_grammar(group: Group) -> Family:
    """Give the family of a group that no library's names fit."""
    return next(family for family in _BY_GRAMMAR if family.accepts(group))
