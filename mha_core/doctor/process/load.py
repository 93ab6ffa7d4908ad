"""From what a person typed to a module: FILE.py:CLASS, FILE.py:function, FILE.py:object, package.module:CLASS.

Imports foreign code, so it belongs in a process of its own (`mha_core.doctor.process.sandbox`). A file is imported as
`python FILE.py` would run it, except that its `if __name__ == "__main__"` part is not.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from mha_core.doctor.calls.failure import one_line
from mha_core.doctor.process.constructor import construct
from mha_core.doctor.process.guesses import Wishes
from mha_core.doctor.process.own_lines import own_line
from mha_core.errors import MhaError, Suggestion

_BY_NAME = re.compile(r"att(n|en)|mha|gqa|mqa|sdpa|mla(?![a-z])", re.IGNORECASE)
_BY_SOURCE = re.compile(r"softmax\(|scaled_dot_product_attention|MultiheadAttention\(")
_TENSOR_NAMES = (
    "q k v query key value queries keys values qkv x xs xq xk xv inputs input tokens hidden_states hidden src tgt"
    " context tensor seq sequence embeddings feats q_in kv"
)
_TENSORS = frozenset(_TENSOR_NAMES.split())
NAMES_TOLD = 12


@dataclass(frozen=True)
class Target:
    """What was typed. Exactly one of file and module is set; name is None where the file is to be searched."""

    file: Path | None
    module: str | None
    name: str | None

    @property
    def place(self) -> Path | str:
        """The file, or the name of the module."""
        return self.file or self.module or ""

    def __str__(self) -> str:
        return f"{self.place}" + (f":{self.name}" if self.name else "")


@dataclass(frozen=True)
class Loaded:
    """A module ready for a check-up, and how it was made, in words."""

    module: nn.Module
    constructor: str


def parse_target(text: str) -> Target:
    """Read FILE.py:NAME, FILE.py, package.module:NAME or package.module.NAME."""
    left, colon, right = text.rpartition(":")
    named = bool(colon) and all(part.isidentifier() for part in right.split("."))
    place, name = (left, right) if named else (text, None)
    if place.endswith(".py") or "/" in place or "\\" in place or Path(place).is_file():
        return Target(Path(place), None, name)
    if name is None and "." in place:
        place, _, name = place.rpartition(".")
    if not place or not all(part.isidentifier() for part in place.split(".")):
        raise _refused(text, "FILE.py:CLASS or package.module:CLASS", f"{text!r} names neither a file nor a module")
    return Target(None, place, name)


def find(target: Target) -> Any:
    """Import the file or module and give the class, function or object of that name.

    Raises:
        MhaError: nothing is there, it cannot be imported, or there are several to choose from.
    """
    space = _import_module(target) if target.file is None else import_file(target.file)
    if target.name is None:
        return _only_attention(space, target)
    found: Any = space
    for part in target.name.split("."):
        if not hasattr(found, part):
            raise _not_found(space, target)
        found = getattr(found, part)
    return found


def build(found: Any, target: Target, wishes: Wishes, given: Mapping[str, Any]) -> Loaded:
    """Make a module of what was found: an object as it is, a class or factory called, a function of tensors wrapped.

    Raises:
        MhaError: the constructor refuses, or what it made cannot be called.
    """
    if isinstance(found, nn.Module):
        return Loaded(found, f"{target.name}, the object of the file as it is")
    if inspect.isroutine(found) and _takes_tensors(found):
        return Loaded(_wrapped(found, found.__name__, found.__module__), f"{found.__name__}, a function of tensors")
    if not callable(found):
        need = "a class, a function or an nn.Module"
        raise _refused(f"{target}", need, f"{target} is of type {type(found).__name__}; it must be {need}")
    made, words = construct(found, wishes, given)
    if isinstance(made, nn.Module):
        return Loaded(made, words)
    forward = getattr(made, "forward", made)
    if inspect.isclass(made) or not callable(forward) or isinstance(made, type(None)):
        need = "an nn.Module or something that can be called with tensors"
        raise _refused(
            f"{target}", need, f"{target} gives an object of type {type(made).__name__}; it must give {need}"
        )
    return Loaded(_wrapped(forward, type(made).__name__, type(made).__module__), words)


def require_file(path: Path) -> None:
    """Refuse what is not a Python file.

    Raises:
        MhaError: it does not exist, or is something else.
    """
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], 1)
        suggestions = [Suggestion((), str(path.with_name(near[0])))] if near else []
        what = "is a folder" if path.is_dir() else "does not exist"
        raise MhaError("doctor", str(path), "a Python file", suggestions, problem=f"{path} {what}")
    if path.suffix != ".py":
        raise _refused(str(path), "a Python file", f"{path} is not a .py file")


def import_file(path: Path) -> ModuleType:
    """Import a file by its path.

    Raises:
        MhaError: it does not exist, is no Python, or raises; with the person's line.
    """
    require_file(path)
    path = path.resolve()
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _told(path.name):
        spec.loader.exec_module(module)
    return module


class _told:  # noqa: N801 (reads as a sentence)
    """Turn whatever an import raises into one sentence with the person's line."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, MhaError):
            return
        place = own_line(error)
        where = f" ({place})" if place else ""
        if isinstance(error, SystemExit):
            problem = (
                f'{self.what} ends the process when it is imported{where}; put that under if __name__ == "__main__"'
            )
        elif isinstance(error, SyntaxError):
            problem = f"{self.what} is not valid Python: {error.msg}{where}"
        else:
            problem = f"{self.what} cannot be imported: {one_line(error)}{where}"
        raise _refused(self.what, "code that can be imported", problem) from error


def _module_name(path: Path) -> str:
    """Name a file as an import would; a file of a package that imports its neighbours relatively by its full name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        tree = ast.parse("")
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    parts, folder = [path.stem], path.parent
    while relative and (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) > 1:
        sys.path.insert(0, str(folder))
        with _told(path.name):
            importlib.import_module(".".join(parts[:-1]))
    name = ".".join(parts)
    return name if name.replace(".", "").isidentifier() and name not in sys.modules else f"checked_{len(sys.modules)}"


def _import_module(target: Target) -> ModuleType:
    assert target.module is not None
    with _told(target.module):
        return importlib.import_module(target.module)


def _only_attention(space: ModuleType, target: Target) -> Any:
    """Give the one class of a file that looks like attention; a class that others only use as a part does not count."""
    classes = _own_classes(space)
    looking = [c for c in classes if _BY_NAME.search(c.__name__)] or [
        c for c in classes if _BY_SOURCE.search(_source(c))
    ]
    whole = [c for c in looking if not any(c.__name__ in _source(other) for other in looking if other is not c)]
    chosen = whole if len(whole) == 1 else looking or classes
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        functions = [n for n, v in vars(space).items() if inspect.isfunction(v) and v.__module__ == space.__name__]
        problem = f"{target} holds no nn.Module class" + (f"; it holds {_listed(functions)}" if functions else "")
        raise _refused(str(target), "FILE.py:NAME", problem)
    several = _listed([c.__name__ for c in chosen])
    suggestion = Suggestion((), f"{target}:{(whole or chosen)[-1].__name__}")
    problem = f"{target} holds several classes: {several}; say which"
    raise MhaError("doctor", str(target), "FILE.py:CLASS", [suggestion], problem=problem)


def _own_classes(space: ModuleType) -> list[type]:
    modules = [v for v in vars(space).values() if inspect.isclass(v) and issubclass(v, nn.Module)]
    return [v for v in dict.fromkeys(modules) if v.__module__ == space.__name__]


def _source(what: type) -> str:
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return ""


def _not_found(space: ModuleType, target: Target) -> MhaError:
    names = [n for n, v in vars(space).items() if not n.startswith("_") and (callable(v) or isinstance(v, nn.Module))]
    folded = {name.lower(): name for name in names}
    assert target.name is not None
    near = [folded[n] for n in difflib.get_close_matches(target.name.lower(), folded, 3)]
    own = [v.__name__ for v in _own_classes(space)]
    where = target.file.name if target.file else target.module
    problem = f"{where} has no {target.name!r}" + (f"; its classes are {_listed(own)}" if own else "")
    left = target.file or target.module
    return MhaError(
        "doctor", target.name, "a name of it", [Suggestion((), f"{left}:{n}") for n in near], problem=problem
    )


def _takes_tensors(function: Callable[..., Any]) -> bool:
    """Whether a function computes attention itself, rather than making a module: its first argument is a tensor."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None or first.default is not first.empty:
        return False
    return first.name.lower() in _TENSORS or "Tensor" in str(first.annotation)


def _wrapped(forward: Callable[..., Any], name: str, module: str) -> nn.Module:
    """Make a module of a function; its class passes for the function's own, so that its file is found."""
    made: nn.Module = type(name, (nn.Module,), {"__module__": module, "__doc__": inspect.getdoc(forward)})()
    made.forward = forward  # on the object: there it keeps its own signature
    return made


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMES_TOLD]) + (f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else "")


def _refused(got: str, need: str, problem: str) -> MhaError:
    return MhaError("doctor", got, need, problem=problem)
