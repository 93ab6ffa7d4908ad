"""The words for every step of a forward pass: what is done, its einops pattern, its shape in letters, its inputs.

One entry per name that the layer's tap reports. Nothing is computed here; the trace joins these words with tensors.

Letters: B batch, S sequence (Sq queries, Sk keys where they differ), E embed_dim, Ek and Ev widths of key and value
inputs, H heads, Hkv key/value heads, G = H / Hkv, D head_dim, C query rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mha_core.config import AttentionConfig
from mha_core.kernels import CHUNK_ROWS

Shape = tuple[str, ...]
STEP_NAMES = (
    *("query", "key", "value", "mask", "qkv_proj", "qkv_groups"),
    *(f"{name}_{step}" for name in "qkv" for step in ("proj", "view", "heads")),
    *("q_rotated", "k_rotated", "k_shared", "v_shared"),
    *("scores", "masked", "weights", "dropped", "context", "context_permuted", "joined", "output"),
)


@dataclass(frozen=True)
class Wording:
    """One step in words.

    Attributes:
        operation: what is done, as in the code.
        pattern: the same as an einops or einsum pattern; empty for inputs.
        symbolic: the shape it should have, in letters; a letter product is written with a dot: "H·D".
        inputs: names of steps it may be made from, for each input the latest one that is there.
    """

    operation: str
    pattern: str
    symbolic: Shape
    inputs: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Setting:
    """What decides the words: the choices of the engine, and whether keys come from elsewhere, are of other widths, or
    have fewer heads; `is_plain` where projections are of width E, whatever the heads."""

    projection: str
    qkv_layout: str
    head_split: str
    kernel: str
    is_cross: bool
    own_widths: bool
    is_grouped: bool
    is_plain: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any], is_cross: bool, *, is_plain: bool = False) -> Setting:
        """Read it from the flat fields of an experiment, also of one that cannot run."""
        projection, layout, split, kernel = (
            str(fields[name]) for name in ("projection", "qkv_layout", "head_split", "kernel")
        )
        own_widths = {fields["kdim"] or fields["embed_dim"], fields["vdim"] or fields["embed_dim"]}
        return cls(
            projection,
            layout,
            split,
            kernel,
            is_cross,
            own_widths=own_widths != {fields["embed_dim"]},
            is_grouped=fields["num_kv_heads"] not in (None, fields["num_heads"]),
            is_plain=is_plain,
        )

    @property
    def kv_heads(self) -> str:
        """Letter of the key/value heads."""
        return "Hkv" if self.is_grouped else "H"

    @property
    def q_len(self) -> str:
        """Letter of the query length."""
        return "Sq" if self.is_cross else "S"

    @property
    def k_len(self) -> str:
        """Letter of the key length."""
        return "Sk" if self.is_cross else "S"

    @property
    def rows(self) -> str:
        """Letter of the query rows that the kernel holds at once."""
        return "C" if self.kernel == "chunked" else self.q_len


def letters(config: AttentionConfig, batch: int, q_len: int, k_len: int) -> dict[str, int]:
    """Give the value of every letter."""
    return {
        "B": batch,
        "S": q_len,
        "Sq": q_len,
        "Sk": k_len,
        "C": min(CHUNK_ROWS, q_len),
        "E": config.embed_dim,
        "Ek": config.key_dim,
        "Ev": config.value_dim,
        "H": config.num_heads,
        "Hkv": config.kv_heads,
        "G": config.num_heads // config.kv_heads,
        "D": config.head_dim,
    }


def _input(name: str, setting: Setting) -> Wording:
    length = setting.q_len if name == "query" else setting.k_len
    width = {"query": "E", "key": "Ek", "value": "Ev"}[name] if setting.own_widths else "E"
    return Wording("input", "", ("B", length, width))


def _fused(name: str, setting: Setting) -> Wording:
    length = setting.q_len
    if name == "qkv_proj":
        total = ("B", length, "(H+2·Hkv)·D" if setting.is_grouped else "3·H·D")
        return Wording("qkv_proj(query)", "b s e, r e -> b s r", total, (("query",),))
    by_group = ("B", length, setting.kv_heads, "G+2" if setting.is_grouped else "3", "D")
    return Wording(f"view({', '.join(by_group)})", "b s (n g d) -> b s n g d", by_group, (("qkv_proj",),))


def _branch(name: str, setting: Setting) -> Wording:
    """The steps of q, k and v between the input and the heads."""
    which, step = name.split("_")
    length = setting.q_len if which == "q" else setting.k_len
    heads = "H" if which == "q" else setting.kv_heads
    axis = "h" if heads == "H" else "n"
    source = {"q": "query", "k": "key", "v": "value"}[which]
    inputs: tuple[tuple[str, ...], ...]
    flat = ("B", length, "E" if setting.is_plain and heads == "H" else f"{heads}·D")
    split = ("B", heads, length, "D")
    if step == "proj" and setting.projection == "fused" and not setting.is_cross and not setting.own_widths:
        place = {"q": "first", "k": "next", "v": "last"}[which]
        return Wording(f"split: the {place} {heads}·D channels", "b s (q k v) -> b s " + which, flat, (("qkv_proj",),))
    if step == "proj":
        layer = f"w{which}" if setting.projection == "separate" else f"{which} block of qkv_proj"
        inputs = ((source, "key", "query"),)
        return Wording(f"{layer}({source})", f"b s e, ({axis} d) e -> b s ({axis} d)", flat, inputs)
    if step == "view":
        seen = ("B", length, heads, "D")
        return Wording(f"view({', '.join(seen)})", f"b s ({axis} d) -> b s {axis} d", seen, ((f"{which}_proj",),))
    if step == "rotated":
        return Wording("turn channel pairs by position", f"b {axis} s d -> b {axis} s d", split, ((f"{which}_heads",),))
    if step == "shared":
        whole = ("B", "H", length, "D")
        inputs = ((f"{which}_rotated", f"{which}_heads"),)
        return Wording("repeat_interleave(G, dim=1)", "b n s d -> b (n g) s d", whole, inputs)
    inputs = ((f"{which}_view", f"{which}_proj", "qkv_groups"),)
    if setting.projection == "fused" and setting.qkv_layout == "interleaved" and not setting.is_cross:
        done = "rearrange" if setting.head_split == "einops" else "flatten, permute"
        return Wording(f"slice, {done}", "b s n g d -> b (n g) s d", split, inputs)
    if setting.head_split == "einops":
        return Wording("rearrange", f"b s ({axis} d) -> b {axis} s d", split, inputs)
    return Wording("permute(0, 2, 1, 3)", f"b s {axis} d -> b {axis} s d", split, inputs)


_LAST = {name: tuple(f"{name}_{step}" for step in ("shared", "rotated", "heads")) for name in "qkv"}


def _kernel(name: str, setting: Setting) -> Wording:
    square = ("B", "H", setting.rows, setting.k_len)
    if name == "scores":
        return Wording("q @ kᵀ · scale", "b h i d, b h j d -> b h i j", square, (_LAST["q"], _LAST["k"]))
    if name == "masked":
        return Wording("masked_fill(~mask, fill)", "b h i j -> b h i j", square, (("scores",), ("mask",)))
    if name == "weights":
        return Wording("softmax(dim=-1)", "b h i j -> b h i j", square, (("masked", "scores"),))
    return Wording("drop, then divide by 1 - p", "b h i j -> b h i j", square, (("weights",),))


def _after(name: str, setting: Setting) -> Wording:
    q_len = setting.q_len
    split, merged = ("B", "H", q_len, "D"), ("B", q_len, "H", "D")
    if name == "context" and setting.kernel == "sdpa":
        every = (_LAST["q"], _LAST["k"], _LAST["v"], ("mask",))
        return Wording("F.scaled_dot_product_attention", "b h i d, b h j d, b h j c -> b h i c", split, every)
    if name == "context":
        joined = ", chunks joined" if setting.kernel == "chunked" else ""
        inputs = (("dropped", "weights"), _LAST["v"])
        return Wording(f"weights @ v{joined}", "b h i j, b h j d -> b h i d", split, inputs)
    if name == "context_permuted":
        return Wording("permute(0, 2, 1, 3)", "b h s d -> b s h d", merged, (("context",),))
    if name == "joined" and setting.head_split == "einops":
        return Wording("rearrange", "b h s d -> b s (h d)", ("B", q_len, "H·D"), (("context",),))
    if name == "joined":
        pattern = "b s h d -> b s (h d)"
        return Wording(f"reshape(B, {q_len}, H·D)", pattern, ("B", q_len, "H·D"), (("context_permuted",),))
    return Wording("fc_out(joined)", "b s (h d), e (h d) -> b s e", ("B", q_len, "E"), (("joined",),))


_FAMILIES: tuple[tuple[tuple[str, ...], Callable[[str, Setting], Wording]], ...] = (
    (("query", "key", "value"), _input),
    (("qkv_proj", "qkv_groups"), _fused),
    (("scores", "masked", "weights", "dropped"), _kernel),
    (("context", "context_permuted", "joined", "output"), _after),
)


def wording(name: str, setting: Setting) -> Wording:
    """Give the words for one step; the mask has none in letters, its axes may each be 1."""
    if name == "mask":
        return Wording("True = may attend", "", ())
    for names, word in _FAMILIES:
        if name in names:
            return word(name, setting)
    return _branch(name, setting)


_WHY = {
    "query": "One vector of E numbers for every token.",
    "key": "What is attended to comes from another sequence, or in another width.",
    "value": "What is read may be of another width than what is compared.",
    "mask": "True where a query may look at a key. An axis of size 1 stands for all batches, heads or queries.",
    "qkv_proj": "One product instead of three: the rows of the three matrices lie in one.",
    "qkv_groups": "The channels of the fused product, cut as they are packed: per group its queries, key and value.",
    "proj": "Every token meets the same matrix, so only the last axis changes.",
    "view": "The last axis is cut into heads of D channels. No number moves.",
    "heads": "Heads stand beside the batch, so that each is a matrix product of its own. Only strides change.",
    "rotated": "Pairs of channels are turned by an angle that grows with the position. The shape stays.",
    "shared": "Each key/value head is repeated for the G query heads of its group.",
    "scores": "One number for every pair of a query and a key, in every head.",
    "masked": "Hidden pairs get the fill, so that the softmax gives them nothing.",
    "weights": "Each row becomes positive and sums to 1.",
    "dropped": "Some weights are set to zero, the others grow, so that the expected sum stays.",
    "context": "Each query reads a mixture of the values: S is summed away, D remains.",
    "context_permuted": "The heads go back beside the channels, so that they can be joined.",
    "joined": "The heads side by side: H·D channels, which is E unless heads have a width of their own.",
    "output": "The last matrix mixes the heads. The shape is that of the input, so layers can be stacked.",
}


def why(name: str) -> str:
    """Say in one sentence why a step has its shape."""
    return _WHY.get(name) or _WHY[name.split("_")[1]]
