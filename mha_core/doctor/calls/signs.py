"""What names, attributes, buffers and source say of a module: aware of positions, from a library, batch first."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.calls.roles import role_of

_LIBRARIES = ("torch", "transformers", "mha_core")
_POSITIONS: tuple[tuple[str, str], ...] = (
    ("rotary", r"rope|rotary|inv_freq|freqs|(^|[_.])(cos|sin)($|[_.])|cos_sin|(cos|sin)_cached|position_embeddings$"),
    ("alibi", r"alibi|slopes?($|[_.])"),
    (
        "relative bias",
        r"rel(ative)?_?(pos|bias|attn_bias|attention_bias|emb|k|v|h|w|idx|index)|relative|(^|[_.])r_(w|r)_bias|"
        r"position_bias|pos_bias|bias_table|(^|[_.])er($|[_.])",
    ),
    ("learned positions", r"pos(ition(al)?)?_?(emb(?!eddings$)|enc|table|param)|(^|[_.])(wpe|pe|pos)($|[_.])"),
)


def library(module: nn.Module) -> bool:
    """Tell whether the module's class comes from torch, transformers or this project."""
    return type(module).__module__.split(".")[0] in _LIBRARIES


def own_files(module: nn.Module) -> tuple[str, ...]:
    """List the source files of the person's own classes in this module."""
    found: dict[str, None] = {}
    for part in module.modules():
        for cls in type(part).__mro__:
            if cls.__module__.split(".")[0] not in (*_LIBRARIES, "builtins"):
                try:
                    found[inspect.getsourcefile(cls) or ""] = None
                except (OSError, TypeError):
                    code = getattr(getattr(cls, "forward", None), "__code__", None)
                    found[getattr(code, "co_filename", "")] = None
    return tuple(name for name in found if name)


def name_of(module: nn.Module) -> str:
    """Give the class name, with its file where it is the person's own."""
    files = own_files(module) if not library(module) else ()
    return type(module).__name__ + (f" ({Path(files[0]).name})" if files else "")


def source_of(module: nn.Module) -> str:
    """Give the source of the person's classes in the module, "" where there is none."""
    texts: dict[str, None] = {}
    for part in module.modules():
        if not type(part).__module__.startswith("torch."):
            try:
                texts[textwrap.dedent(inspect.getsource(type(part)))] = None
            except (OSError, TypeError):
                continue
    return "\n".join(texts)


def position_signs(module: nn.Module) -> tuple[str, ...]:
    """Say why equal tokens at different places may differ, () where nothing says so."""
    names = [name for part in module.modules() for name in _names(part)]
    names += [type(part).__name__.lower() for part in module.modules()]
    found = [sign for sign, pattern in _POSITIONS if any(re.search(pattern, name, re.IGNORECASE) for name in names)]
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) and max(part.kernel_size) > 1 for part in module.modules()):
        found.append("conv")
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):
        found.append("recurrent")
    source = source_of(module)
    if (
        not found
        and re.search(r"torch\.arange|torch\.polar", source)
        and re.search(r"\.cos\(|\.sin\(|torch\.(cos|sin|polar)\(", source)
    ):
        found.append("rotary")
    return tuple(found)


def _names(part: nn.Module) -> Iterator[str]:
    yield from (name for name, _ in part.named_parameters(recurse=False))
    yield from (name for name, _ in part.named_buffers(recurse=False))
    yield from (name for name, _ in part.named_children())
    yield from (
        name
        for name, value in vars(part).items()
        if not name.startswith("_") and value is not None and value is not False
    )
    if isinstance(part, MultiHeadAttention) and part.config.rope_theta is not None:
        yield "rope"
    if not type(part).__module__.startswith("torch.nn"):
        yield from (name for name in inspect.signature(part.forward).parameters if role_of(name) != "positions")


def declared_batch_first(module: nn.Module) -> bool | None:
    """Read whether the module wants (B, S, E): its own attribute, its words, or the names in `S, B, E = x.shape`."""
    for part in module.modules() if library(module) else (module,):
        value = vars(part).get("batch_first")
        if isinstance(value, bool):
            return value
    told = _order_in_words(" ".join(inspect.getdoc(one) or "" for one in (type(module), module.forward)))
    told = _order_in_names(module) if told is None else told
    told = False if told is None and _as_torch_layers(module) else told
    if told is None:
        comments = " ".join(re.findall(r"#[^\n]*", class_source(module)))
        told = _order_in_words(comments)
    return told


def _as_torch_layers(module: nn.Module) -> bool:
    """Tell whether forward is written as torch's encoder and decoder layers, around layers that are sequence first."""
    orders = [part.batch_first for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    names = set(inspect.signature(module.forward).parameters)
    written = {"src", "src_key_padding_mask"} <= names or {"tgt", "memory", "tgt_key_padding_mask"} <= names
    return bool(orders) and not any(orders) and written


def class_source(module: nn.Module) -> str:
    """Give the source of the module's class, "" where there is none."""
    try:
        return textwrap.dedent(inspect.getsource(type(module)))
    except (OSError, TypeError):
        return ""


def class_tree(module: nn.Module) -> ast.Module:
    """Give the syntax tree of the module's class, an empty one where there is no source."""
    try:
        return ast.parse(class_source(module))
    except SyntaxError:
        return ast.parse("")


def _order_in_words(words: str) -> bool | None:
    batch, length = r"(b|n|bs|bsz|batch(_?size)?)", r"(s|l|t|seq(_?len(gth)?)?|len(gth)?|time|tgt_len|q_len|sq)"
    text = words.lower()
    if re.search(rf"[\[(]\s*{length}\s*(,|x)\s*{batch}\s*(,|x)", text):
        return False
    if re.search(rf"[\[(]\s*{batch}\s*(,|x)\s*{length}\s*(,|x)", text):
        return True
    return None


def _order_in_names(module: nn.Module) -> bool | None:
    """Read `S, B, E = x.shape` or `seq_len, batch, _ = x.size()` in the source of forward."""
    for node in ast.walk(class_tree(module)):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        names = [part.id.lower() if isinstance(part, ast.Name) else "" for part in node.targets[0].elts]
        if len(names) >= 2 and re.search(r"\.(shape|size\(\))", ast.unparse(node.value)):
            first, second = (_axis(name) for name in names[:2])
            if "batch" in (first, second) and first != second and "length" in (first, second):
                return first == "batch"
    return None


def declared_heads_axis(module: nn.Module) -> int:
    """Give where heads stand in inputs already split: 2 for `B, S, H, D = q.shape`, else 1."""
    for node in ast.walk(class_tree(module)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and len(node.targets[0].elts) == 4:
            names = [part.id.lower() if isinstance(part, ast.Name) else "" for part in node.targets[0].elts]
            if re.search(r"\.(shape|size\(\))", ast.unparse(node.value)) and _axis(names[1]) == "length":
                return 2
    words = " ".join(inspect.getdoc(one) or "" for one in (type(module), module.forward)).lower()
    return (
        2
        if re.search(r"[\[(]\s*b\w*\s*,\s*(s|l|t|n|seq\w*|len\w*)\s*,\s*(h|heads?|num_heads|n_?heads?)\b", words)
        else 1
    )


def _axis(name: str) -> str:
    if re.fullmatch(r"(b|n|bs|bsz|nb|batch\w*|b_?size|n_?batch\w*)", name):
        return "batch"
    return (
        "length"
        if re.fullmatch(r"(s|l|t|sq|lq|tq|seq\w*|len\w*|time\w*|tgt_len|src_len|q_len|\w*_?len(gth)?|n_?tokens)", name)
        else ""
    )
