"""What documentation, source and names say of a mask argument: its polarity, its shape, what it usually means."""

from __future__ import annotations

import inspect
import re

from torch import nn

from mha_core.doctor.calls.mask_forms import SHAPES, Scope
from mha_core.doctor.calls.signs import class_source, library

KEEPING, HIDING, ADDED = ("keep", "int", "one"), ("hide", "one_hidden"), ("add", "add_min")
_HIDE = (
    r"hid(e|den)|\bmask(ed|ing)?\b|ignor|\bpad(ding|ded|s)?\b|block|\bnot\b|exclu|disallow|forbid|prevent|drop|skip"
    r"|cannot|invalid|remov|absent"
)
_KEEP = (
    r"keep|kept|attend|visible|valid|\breal\b|allow|particip|takes? part|token|\bused?\b|\bsees?\b|present|seen|words?"
)
_TRUE, _FALSE = r"\b(true|1\.0?|1s?|ones?|non-?zero)(?!\w)", r"\b(false|0\.0?|0s?|zeros?)(?!\w)"
_AXES = (
    ("B", r"b|n|bs|bsz|batch([_ ]?size)?|n_?batch|num_samples"),
    ("1", "1"),
    ("H", r"h|heads?|num_?heads|n_?heads?"),
    ("B*H", r"b(atch(_size)?)?\s*\*\s*(h|num_heads|n_heads|heads)"),
    (
        "S",
        r"s|sq|sk|t|l|k|q|m|n|len\w*|\w*seq\w*|\w*_len\w*|src\w*|tgt\w*|keys?|key_?len\w*|query\w*|num_keys|instances|tokens"
        r"|time|lq|lk|tq|tk|q_len|k_len|seq_k|seq_q|max_len|length",
    ),
)
_WRITTEN = {
    "B S": "(B, Sk)",
    "B 1 S": "(B, 1, Sk)",
    "B 1 1 S": "(B, 1, 1, Sk)",
    "S S": "(Sq, Sk)",
    "1 S S": "(1, Sq, Sk)",
    "1 1 S S": "(1, 1, Sq, Sk)",
    "B S S": "(B, Sq, Sk)",
    "B 1 S S": "(B, 1, Sq, Sk)",
    "B H S S": "(B, H, Sq, Sk)",
    "B*H S S": "(B*H, Sq, Sk)",
}
_ODD = r"block|bias|window|rel|graph|edge|adj"


def documented(module: nn.Module, name: str) -> tuple[str, ...]:
    """Give the kinds the documentation names for this argument: keeping, hiding, added, or () where it says nothing."""
    near = _near(module, name)
    near = re.sub(r"\b(non|not|un)[- ]?(to )?(be )?(pad\w*|mask\w*|ignor\w*|hidden|block\w*|exclud\w*)", "valid", near)
    added = re.search(r"-\s*inf|minus inf|additive|added to", near)
    told = _polarity(near[: added.start()] if added else near, (True,) if added else (True, False))
    return told or (ADDED if added else ())


def _polarity(near: str, values: tuple[bool, ...]) -> tuple[str, ...]:
    """Read what True (or 1) and False (or 0) are said to do."""
    for word, kinds, opposite in ((_TRUE, KEEPING, HIDING), (_FALSE, HIDING, KEEPING)):
        for found in re.finditer(word, near) if (word is _TRUE) in values else ():
            other = _FALSE if word is _TRUE else _TRUE
            after = re.split(rf"[,;.()\n]|{other}", near[found.end() :], maxsplit=1)[0]
            before = re.split(r"[,;.()\n]", near[: found.start()])[-1]
            marked = re.search(r"\b(are|is|indicated|marked|set to|with|as|by|=)\s*(\w+\s*)?(=\s*)?$", before)
            for told in (after, before if marked else ""):
                if re.search(_HIDE, told):
                    return opposite
                if re.search(_KEEP, told):
                    return kinds
    return ()


def in_source(module: nn.Module, name: str) -> tuple[str, ...]:
    """Read masked_fill, where, products and sums of the mask in the class's own source, spoiled though they may be."""
    source = class_source(module)
    mine = rf"(?<![\w.]){re.escape(name)}\b"
    fills = re.findall(r"masked_fill_?\(\s*([^,]+),", source)
    told = next((fill for fill in fills if re.search(mine, fill)), next((f for f in fills if "mask" in f), None))
    if told is not None:
        keeps = re.search(r"==\s*(0|False)|~|logical_not|\bnot\b|<\s*(0\.5|1)|!=\s*1|\.eq\(0\)", told)
        return KEEPING if keeps else HIDING
    if re.search(rf"1(\.0?)?\s*-\s*{mine}|where\(\s*{mine}|\*\s*{mine}", source):
        return KEEPING
    if re.search(rf"{mine}[^=\n]*\*\s*(-\s*\d|float)", source):
        return HIDING
    return ADDED if re.search(rf"\+=?\s*{mine}", source) else ()


def by_name(name: str) -> tuple[str, ...]:
    """Give the usual kinds for a name."""
    if re.search("pad|hide|hidden|ignore", name):
        return HIDING
    if "bias" in name:
        return ADDED
    return (*HIDING, *ADDED) if re.fullmatch("(attn|src|tgt|memory)_mask", name) else KEEPING


def documented_scope(module: nn.Module, name: str) -> Scope | None:
    """Give "keys" where the name or the written shapes say that the argument only tells padding."""
    written = written_shapes(module, name)
    told = re.search("pad|len|key_mask", name) or (written and all(shape in SHAPES["keys"] for shape in written))
    return "keys" if told else None


def natural_scope(module: nn.Module, name: str) -> Scope | None:
    """Give what an argument is usually a mask over; None where it can be either."""
    if documented_scope(module, name) == "keys":
        return "keys"
    written = written_shapes(module, name)
    if written and all(shape in SHAPES["pairs"] for shape in written):
        return "pairs"
    return "pairs" if re.search("attn_mask|causal|tgt_mask|src_mask", name) else None


def written_shapes(module: nn.Module, name: str) -> tuple[str, ...]:
    """List the shapes that documentation or comments give for this argument, as in `mask_forms.SHAPES`."""
    if library(module):
        return ()  # known by trial; their words are not ours to parse
    found: dict[str, None] = {}
    for inner in re.findall(r"[(\[]([^()\[\]]*)[)\]]", _near(module, name)):
        axes = [_axis(part.strip()) for part in re.split(r",|\bx\b", inner)]
        written = " ".join("S" if axis == "B" and place > 0 else axis for place, axis in enumerate(axes))
        if written in _WRITTEN:
            found[_WRITTEN[written]] = None
    return tuple(found)


def _axis(word: str) -> str:
    return next((axis for axis, pattern in _AXES if re.fullmatch(pattern, word)), "?")


def unusual(name: str) -> bool:
    """Tell whether the argument is likely to be something else than a mask over keys or pairs."""
    return bool(re.search(_ODD, name))


def _near(module: nn.Module, name: str) -> str:
    """Give what is written near the argument's name in documentation and comments, in lower case."""
    comments = "\n".join(re.findall(r"#([^\n]*)", class_source(module)))
    texts = [inspect.getdoc(module.forward) or "", type(module).__doc__ or "", comments]
    for text in texts:
        at = re.search(rf"\b{re.escape(name)}\b\W", text)
        if at is not None:
            rest = text[at.end() : at.end() + 300]
            return re.split(r"\n\s*\n|\n\s*\w+\s*(\([^)]*\))?\s*:", rest, maxsplit=1)[0].lower()
    return ""
