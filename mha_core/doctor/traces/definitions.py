"""From the line that uses something to the line that made it what it is: `self.scale` to where it was assigned.

A trace sees only the forward pass; a wrong `nn.Softmax(dim=0)` was written in the constructor. Reads the person's file
as a syntax tree, and stays with the line it was given where nothing is found or more than one line fits.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache

from mha_core.doctor.causes.hiding import Masking
from mha_core.doctor.report import Place
from mha_core.doctor.traces.tracing import Step, Trace

SCALE = re.compile(r"\*\*|sqrt|rsqrt")
SOFTMAX = re.compile(r"Softmax\(")
LAYER = re.compile(r"MultiheadAttention\(|Transformer\w*\(")
TRIANGLE = re.compile(r"tril|triu")
MAKERS = ("tril", "triu", "tril_", "triu_", "ge", "le", "gt", "lt", "greater", "less", "greater_equal", "less_equal")


def defined(trace: Trace, place: Place | None, wanted: re.Pattern[str]) -> Place | None:
    """Go from a place to the assignment of an attribute it uses, where that fits `wanted` and the place does not."""
    path = None if place is None else trace.paths.get(place.file)
    tree = None if path is None else _tree(path)
    if place is None or path is None or tree is None:
        return place
    scope, statement = _around(tree, place.line)
    if statement is None or wanted.search(ast.unparse(statement)):
        return place
    names = {n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute)}
    found = {line for name, line, text in _assigned(scope) if name in names and wanted.search(text)}
    if len(found) != 1:
        return place
    line = found.pop()
    return Place(place.file, line, linecache.getline(path, line).strip())


def made_at(trace: Trace, mask: Masking, names: tuple[str, ...] = MAKERS) -> Place | None:
    """Find the line that drew the triangle of a mask, or the last with another step; None where the pass has none."""
    step: Step | None = mask.step
    for _ in range(20):
        inputs = [] if step is None else list(step.inputs)
        if step is mask.step:
            fitting = [t for t in inputs if t.shape == (mask.hidden if mask.mask is None else mask.mask).shape]
            inputs = fitting[-1:] or inputs[1:]
        step = None if step is None or not inputs else trace.made_before(inputs[0], step.index)
        if step is None:
            return None
        if step.name in names:
            return step.place
    return None


def enclosing(trace: Trace, place: Place | None, words: str) -> Place | None:
    """Go from a place to the `with` line or the decorator around it that holds the words."""
    path = None if place is None else trace.paths.get(place.file)
    tree = None if path is None else _tree(path)
    if place is None or path is None or tree is None:
        return place
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.FunctionDef) and node.lineno <= place.line <= (node.end_lineno or 0):
            heads = [i.context_expr for i in node.items] if isinstance(node, ast.With) else node.decorator_list
            for head in heads:
                if words in ast.unparse(head):
                    return Place(place.file, head.lineno, linecache.getline(path, head.lineno).strip())
    return place


@lru_cache(maxsize=16)
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


def _around(tree: ast.Module, line: int) -> tuple[ast.AST, ast.stmt | None]:
    """Find the class around a line, else the file, and the smallest statement at the line."""
    here = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    classes = [n for n in here if isinstance(n, ast.ClassDef)]
    simple = [n for n in here if not isinstance(n, ast.ClassDef | ast.FunctionDef)]
    scope: ast.AST = classes[-1] if classes else tree
    return scope, min(simple, key=lambda n: (n.end_lineno or n.lineno) - n.lineno, default=None)


def _assigned(scope: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Every attribute that gets a value: name, line, the value as text; a registered buffer too."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.lineno, ast.unparse(node.value)
                elif isinstance(target, ast.Tuple):
                    text = ast.unparse(node.value)
                    yield from ((t.attr, node.lineno, text) for t in target.elts if isinstance(t, ast.Attribute))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1:
            name = node.args[0]
            if node.func.attr == "register_buffer" and isinstance(name, ast.Constant):
                yield str(name.value), node.lineno, ast.unparse(node.args[1])
