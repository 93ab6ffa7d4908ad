"""Modules that read maps instead of rows of tokens: channels first, images, grids; folded to tokens and back.

A token is a place of the map. Layouts: "tokens" (B, S, E), "channels" (B, E, S), "image" (B, E, H, W), "grid"
(B, H, W, E), with S = H * W.
"""

from __future__ import annotations

import ast
import re
from math import isqrt
from typing import Literal

from torch import Tensor, nn

from mha_core.doctor.calls.signs import class_tree

Layout = Literal["tokens", "channels", "image", "grid"]
LAYOUTS: dict[Layout, str] = {
    "tokens": "rows of tokens, (B, S, E)",
    "channels": "channels first, (B, E, S)",
    "image": "images, (B, E, H, W); every place is a token",
    "grid": "grids, (B, H, W, E); every place is a token",
}
GRID_LENGTHS = (8, 16, 64)  # 2 x 4, 4 x 4, 8 x 8: what a stride of 2, 4 or 8 divides
_CHANNEL = r"(c|ch|e|d|f|in_?c|\w*chann?els?\w*|\w*dim|embed\w*|feat\w*)"
_LENGTH = r"(n|l|t|s|hw|len\w*|seq\w*|time|w|width|points?|num_points|n_?points)"
_PAIR = r"(h|hh|height|rows?|x_?h|hei|nh) (w|ww|width|cols?|columns?|x_?w|wid|nw)"


def sides(tokens: int) -> tuple[int, int]:
    """Give height and width of a map of so many places: both even where that can be, else as square as can be."""
    if tokens % 4 == 0:
        height, width = sides(tokens // 4)
        return 2 * height, 2 * width
    height = next(side for side in range(isqrt(tokens), 0, -1) if tokens % side == 0)
    return height, tokens // height


def laid(tensor: Tensor, layout: Layout) -> Tensor:
    """Fold tokens (B, S, E) into a layout."""
    if layout == "tokens":
        return tensor
    height, width = sides(tensor.shape[1])
    if layout == "grid":
        return tensor.reshape(tensor.shape[0], height, width, -1)
    first = tensor.transpose(1, 2)
    return first.contiguous() if layout == "channels" else first.reshape(*first.shape[:2], height, width)


def unfolded(leaf: Tensor, layout: Layout, batch: int, tokens: int) -> Tensor | None:
    """Give a tensor in this layout as (B, S, anything), None where its shape is another."""
    if layout == "tokens" or leaf.dim() < 3 or leaf.shape[0] != batch:
        return None
    if layout == "channels":
        return leaf.transpose(1, 2) if leaf.dim() == 3 and leaf.shape[2] == tokens else None
    if leaf.dim() != 4:
        return None
    if layout == "grid":
        return leaf.flatten(1, 2) if tuple(leaf.shape[1:3]) == sides(tokens) else None
    return leaf.flatten(2).transpose(1, 2) if tuple(leaf.shape[2:]) == sides(tokens) else None


def written_layouts(module: nn.Module) -> tuple[Layout, ...]:
    """Read the layout from `B, C, H, W = x.shape` or `b, c, n = x.size()` in forward, () where nothing is written."""
    found: dict[Layout, None] = {}
    for node in ast.walk(class_tree(module)):
        if not (isinstance(node, ast.FunctionDef) and node.name == "forward"):
            continue
        streams = {argument.arg for argument in node.args.args}
        for inner in ast.walk(node):
            names = _unpacked(inner, streams)
            if len(names) == 4 and re.fullmatch(_CHANNEL, names[1]) and _pair(names[2:]):
                found["image"] = None
            elif len(names) == 4 and re.fullmatch(_CHANNEL, names[3]) and _pair(names[1:3]):
                found["grid"] = None
            elif len(names) == 3 and re.fullmatch(_CHANNEL, names[1]) and re.fullmatch(_LENGTH, names[2]):
                found["channels"] = None
    return tuple(found)


def _pair(names: list[str]) -> bool:
    return any(re.fullmatch(_PAIR, " ".join(order)) for order in (names, names[::-1]))


def _unpacked(node: ast.AST, streams: set[str]) -> list[str]:
    """Give the names an argument's shape is unpacked into, in lower case."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
        return []
    found = re.fullmatch(r"(\w+)\.(shape|size\(\))", ast.unparse(node.value))
    if found is None or found[1] not in streams:
        return []
    return [part.id.lower() if isinstance(part, ast.Name) else "" for part in node.targets[0].elts]


def possible_layouts(module: nn.Module) -> tuple[Layout, ...]:
    """List the layouts that the module's parts allow: convolutions and norms over channels."""
    parts = list(module.modules())
    found: list[Layout] = []
    if any(isinstance(part, nn.Conv2d | nn.BatchNorm2d | nn.InstanceNorm2d | nn.GroupNorm) for part in parts):
        found += ["image"]
    if any(isinstance(part, nn.Conv1d | nn.BatchNorm1d | nn.InstanceNorm1d | nn.GroupNorm) for part in parts):
        found += ["channels"]
    return tuple(found)
