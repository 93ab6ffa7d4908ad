"""Modules whose forward takes its tensors in one tuple, as in `q, k, v = inputs`."""

from __future__ import annotations

import ast
import inspect
import re

from torch import nn

from mha_core.doctor.calls.signs import class_tree


def packed_count(module: nn.Module, name: str) -> int:
    """Count the tensors of a tuple argument, by its annotation or by the names it is unpacked into; 0 for a tensor."""
    annotation = inspect.signature(module.forward).parameters[name].annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if re.match(r"(typing\.)?tuple\[", text, re.IGNORECASE):
        return text.count("Tensor")
    for node in ast.walk(class_tree(module)):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            return max((_names(inner, name) for inner in ast.walk(node)), default=0)
    return 0


def _names(node: ast.AST, name: str) -> int:
    plain = isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == name
    if not plain or not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return 0
    return len(node.targets[0].elts)
