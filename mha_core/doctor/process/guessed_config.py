"""A config object for modules that take one: the class the file names, filled in, or a stand-in that answers.

The stand-in answers names that the code reads outright (`config.n_embd`, `cfg["emb_dim"]`). Names that the code asks
for with a default of its own (`getattr(config, "bias", False)`, `hasattr`, `.get`) are absent, so that it holds.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from mha_core.doctor.process.guesses import UNKNOWN, Sizes, Wishes, kind_of, of_annotation, value_of

_USUAL = "config cfg conf args hparams hps hp params opt opts options model_args configuration"
CONFIG_NAMES = frozenset(_USUAL.split())
_ASKING = ("getattr", "hasattr")


class GuessedConfig(Mapping[str, Any]):
    """A stand-in for a config: attributes and items by their usual names, from one set of sizes."""

    def __init__(
        self, sizes: Sizes, wishes: Wishes, absent: frozenset[str], names: frozenset[str] = frozenset()
    ) -> None:
        vars(self).update(_sizes=sizes, _wishes=wishes, _absent=absent, _names=names, _set={})
        self._set.update(wishes.given)

    def _answer(self, name: str) -> Any:
        settled = vars(self)["_set"]
        if name in settled:
            return settled[name]
        if name.startswith("_") or name in self._absent:
            return UNKNOWN
        return value_of(kind_of(name), self._sizes, self._wishes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_set" not in vars(self):  # copies are made without __init__
            raise AttributeError(name)
        value = self._answer(name)
        if value is UNKNOWN:
            raise AttributeError(f"the config has no {name!r}", name=name, obj=self)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._set[name] = value

    def __getitem__(self, name: str) -> Any:
        value = self._answer(name)
        if value is UNKNOWN:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._answer(name) is not UNKNOWN

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in sorted(self._names | set(self._set)) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return "config(" + ", ".join(f"{name}={self[name]!r}" for name in self) + ")"


def takes_config(name: str, annotation: Any) -> bool:
    """Whether an argument is a config: by its name, or by the name of its type."""
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name in CONFIG_NAMES or re.search(r"(Config|Args|HParams|Params)\b", words) is not None


def build_config(owner: Any, name: str, annotation: Any, sizes: Sizes, wishes: Wishes) -> Any:
    """Make a config for an argument of a class or function.

    Args:
        owner: the class or function that takes it. name, annotation: of its argument.
        wishes: `given` holds values for the config's own fields.
    """
    module = sys.modules.get(owner.__module__)
    known = _class_of(annotation, module) or _transformers_config(owner)
    if known is None and not isinstance(annotation, type):
        known = _class_in(module, owner)
    if known is None:
        source = _tree(module)
        return GuessedConfig(sizes, wishes, _asked(source), _read(source, name))
    if _is_transformers(known):
        return _small(known, sizes, wishes)
    return fill(known, sizes, wishes)


def fill(known: type, sizes: Sizes, wishes: Wishes) -> Any:
    """Make an object of a config's class: its own defaults, guessed values where it has none, and what was declared."""
    values: dict[str, Any] = {}
    try:
        parameters = [
            p
            for p in inspect.signature(known).parameters.values()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    except ValueError:
        parameters = []
    for parameter in parameters:
        kind = kind_of(parameter.name)
        declared = getattr(wishes, kind, None) if kind in ("embed_dim", "num_heads", "num_kv_heads", "causal") else None
        if parameter.name in wishes.given:
            values[parameter.name] = wishes.given[parameter.name]
        elif parameter.default is parameter.empty:
            value = value_of(kind, sizes, wishes)
            value = of_annotation(parameter.annotation) if value is UNKNOWN else value
            if value is not UNKNOWN:
                values[parameter.name] = value
        elif declared is not None:
            values[parameter.name] = declared
    made = known(**values)
    for name in wishes.given.keys() - values.keys():
        setattr(made, name, wishes.given[name])
    return made


def has_defaults(known: type) -> Mapping[str, int]:
    """Give the sizes that a config's class has by default, by the names of `Sizes`."""
    found: dict[str, int] = {}
    for parameter in inspect.signature(known).parameters.values():
        kind = kind_of(parameter.name)
        if kind in ("embed_dim", "num_heads", "num_kv_heads", "head_dim") and isinstance(parameter.default, int):
            found.setdefault(kind, parameter.default)
    return found


def config_class(owner: Any, annotation: Any) -> type | None:
    """Give the class in a file that an argument's config is an object of, None where there is none."""
    module = sys.modules.get(owner.__module__)
    known = _class_of(annotation, module) or _class_in(module, owner)
    return None if known is None or _is_transformers(known) else known


def _class_of(annotation: Any, module: ModuleType | None) -> type | None:
    if isinstance(annotation, str):
        annotation = getattr(module, annotation.split("|")[0].strip().strip("\"'"), None)
    takes = (
        isinstance(annotation, type) and annotation not in (dict, object, Mapping) and annotation.__module__ != "types"
    )
    return annotation if takes and annotation is not inspect.Parameter.empty else None


def _class_in(module: ModuleType | None, owner: Any) -> type | None:
    """Give the one class of the file that is named like a config."""
    if module is None or _is_library(module.__name__):
        return None
    named = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and value is not owner and re.search(r"(Config|Args|HParams)$", name)
    ]
    own = [value for value in named if value.__module__ == module.__name__]
    usable = [value for value in own or named if dataclasses.is_dataclass(value) or "__init__" in vars(value) or own]
    return usable[0] if len(usable) == 1 else None


def _is_library(name: str) -> bool:
    return name.split(".")[0] in ("torch", "transformers", "mha_core", "types")


def _is_transformers(known: type) -> bool:
    return any(base.__name__ in ("PretrainedConfig", "PreTrainedConfig") for base in known.__mro__)


def _transformers_config(owner: Any) -> type | None:
    """Find the config of a transformers class beside its file: modeling_x.py has configuration_x.py."""
    if not owner.__module__.startswith("transformers.models."):
        return None
    package = owner.__module__.rpartition(".")[0]
    from importlib import import_module

    try:
        beside = import_module(f"{package}.configuration_{package.rpartition('.')[2]}")
    except ImportError:
        return None
    found = [
        v
        for v in vars(beside).values()
        if isinstance(v, type) and v.__module__ == beside.__name__ and _is_transformers(v)
    ]
    plain = [v for v in found if "Vision" not in v.__name__ and "Text" not in v.__name__]
    return (plain or found or [None])[0]  # type: ignore[list-item]


def _small(known: type, sizes: Sizes, wishes: Wishes) -> Any:
    """Make a transformers config with small sizes where it takes them, computing without fused kernels."""
    default = known()
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    kinds = ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "wide")
    small = {
        n: value_of(k, sizes, wishes)
        for n, k in zip(names, kinds, strict=True)
        if isinstance(getattr(default, n, None), int)
    }
    try:
        made = known(**small | dict(wishes.given))
    except Exception:  # sizes that this family ties otherwise: its own
        made = known(**wishes.given)
    if getattr(made, "_attn_implementation", None) is None:
        made._attn_implementation = "eager"
    return made


def _tree(module: ModuleType | None) -> ast.Module:
    path = getattr(module, "__file__", None)
    return ast.parse(Path(path).read_bytes()) if path else ast.parse("")


def _asked(source: ast.Module) -> frozenset[str]:
    """Names the code asks for with an answer of its own in hand."""
    found = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and len(node.args) >= 1:
            called = node.func
            if isinstance(called, ast.Name) and called.id in _ASKING and len(node.args) > 1:
                found |= _text(node.args[1])
            elif isinstance(called, ast.Attribute) and called.attr in ("get", "pop", "setdefault"):
                found |= _text(node.args[0])
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            found |= _text(node.left)
    return frozenset(found)


def _read(source: ast.Module, config: str) -> frozenset[str]:
    """Names the code reads outright from an argument of that name, or from the same on `self`."""
    found: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute | ast.Subscript):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner == config:
                found |= {node.attr} if isinstance(node, ast.Attribute) else _text(node.slice)
    return frozenset(found)


def _text(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
