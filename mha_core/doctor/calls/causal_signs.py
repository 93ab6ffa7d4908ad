"""Whether a module says of itself that it is causal: attributes, triangular buffers, its name, its forward."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.signs import class_tree, library

_FLAGS = (
    "causal",
    "is_causal",
    "use_causal_mask",
    "causal_mask",
    "autoregressive",
    "unidirectional",
    "masked",
    "mask_future",
    "use_causal",
    "causal_attention",
)
_MAX_SIDE = 4096


def declared_causal(module: nn.Module) -> bool | None:
    """Give what the module says of itself; None where it says nothing."""
    flags = [
        value
        for part in module.modules()
        for name in _FLAGS
        for value in (vars(part).get(name), vars(part).get("_" + name))
        if isinstance(value, bool)
    ]
    if any(flags):
        return True
    name = type(module).__name__
    if re.search("causal|autoregressive", name, re.I) and not re.search("non_?causal", name, re.I):
        return True
    if flags:
        return False
    if any(_triangular(tensor) for part in module.modules() for tensor in _square(part)):
        return True
    if library(module):
        return None
    return True if _said(module) or _triangle_in_forward(module) else None


def _said(module: nn.Module) -> bool:
    """Tell whether the first line of the documentation calls the module causal, without an if."""
    first = (inspect.getdoc(type(module)) or "").split("\n\n")[0].lower()
    if type(module).__doc__ is None:
        return False
    return bool(re.search(r"\bcausal(ly)?\b|autoregressive|masked self-attention", first)) and not re.search(
        r"\b(if|when|optional\w*|either|or|non|not|may|can|without|no)\b", first
    )


def _square(part: nn.Module) -> Iterator[Tensor]:
    for tensor in (*part.buffers(recurse=False), *(v for v in vars(part).values() if isinstance(v, Tensor))):
        if (
            tensor.dim() >= 2
            and 3 <= tensor.shape[-1] == tensor.shape[-2] <= _MAX_SIDE
            and tensor[..., 0, 0].numel() == 1
        ):
            yield tensor.reshape(tensor.shape[-2:])[:64, :64]


def _triangular(tensor: Tensor) -> bool:
    """Tell whether a buffer is a causal mask: two values by diagonals, one of them only beyond the diagonal."""
    side = tensor.shape[0]
    values = tensor.double()
    below = [values.diagonal(-distance) for distance in range(1, side)]
    above = [values.diagonal(distance) for distance in range(1, side)]
    if not all(bool((one == one[0]).all()) for one in (*below, *above)) or len(set(values.flatten().tolist())) != 2:
        return False
    low, high = torch.stack([one[0] for one in below]), torch.stack([one[0] for one in above])
    if bool((low == high).all()):
        return False
    return bool((high[1:] == high[-1]).all()) or bool((low[1:] == low[-1]).all())


def _triangle_in_forward(module: nn.Module) -> bool:
    """Tell whether forward draws a triangle, or says is_causal=True, on the way every plain call takes."""
    forward = next(
        (node for node in ast.walk(class_tree(module)) if isinstance(node, ast.FunctionDef) and node.name == "forward"),
        None,
    )
    return forward is not None and any(_draws(node) for node in _unconditional(forward))


def _unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, but into an if only where it asks whether something is None."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If | ast.IfExp) and not ast.unparse(child.test).endswith(" is None"):
            continue
        yield child
        yield from _unconditional(child)


def _draws(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if ast.unparse(node.func).split(".")[-1] in ("tril", "triu", "tril_", "triu_"):
        return True
    return any(
        word.arg == "is_causal" and isinstance(word.value, ast.Constant) and word.value.value is True
        for word in node.keywords
    )
