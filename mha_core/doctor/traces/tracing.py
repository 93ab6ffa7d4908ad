"""The operations of one forward pass, with their tensors and the lines of source that asked for them.

A `TorchFunctionMode` sees every torch function that is called while it is on, and this one writes each down and lets
it pass: results, random numbers and gradients are those of a pass without it. It keeps a reference to every tensor, so
the identity of a tensor tells where it was made. A tensor that is overwritten keeps its identity; what it held before
is copied, and `Trace.value` gives what a tensor held at a given step.
"""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mha_core.doctor.report import Place

COPIED_ELEMENTS = 1 << 25  # what copies of overwritten tensors may hold in one trace; 128 MiB of float32
SPOKEN = {"true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "__rdiv__": "__rtruediv__"}
LEAVES_TORCH = ("numpy", "tolist", "item", "__array__", "requires_grad_")


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a torch function.

    Attributes:
        name: as torch's: "view", "matmul", "linear"; an operator as its function ("mul"), a property as itself ("mT").
        args, kwargs: as given. output: as returned.
        place: the line of the person's file that asked for it.
        index: position in the trace.
        func: what was called.
        changed: the tensor it wrote into, None where it made a new one.
        grad: whether autograd was on.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    place: Place | None = None
    index: int = -1
    func: Callable[..., Any] | None = None
    changed: Tensor | None = None
    grad: bool = True

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Every tensor among the arguments, in order."""
        return tuple(tensors((self.args, tuple(self.kwargs.values()))))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Every tensor it returned or wrote into."""
        found = tuple(tensors(self.output))
        return found if self.changed is None or any(t is self.changed for t in found) else (*found, self.changed)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Give an argument by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


@dataclass(eq=False)
class Trace:
    """The steps of a pass, in order, and which of them made, changed and used a tensor.

    `paths` gives the full path of a file by its name as in a `Place`.
    """

    steps: tuple[Step, ...] = ()
    paths: dict[str, str] = field(default_factory=dict)
    _writers: dict[int, list[int]] = field(default_factory=dict)
    _users: dict[int, list[int]] = field(default_factory=dict)
    _before: dict[int, list[tuple[int, Tensor]]] = field(default_factory=dict)
    _copies: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def made(self, tensor: Tensor) -> Step | None:
        """Find the step a tensor's content comes from: the last that wrote it. None for inputs and parameters."""
        return self.made_before(tensor, len(self.steps))

    def made_before(self, tensor: Tensor, index: int) -> Step | None:
        """Find the last step before `index` that wrote the tensor."""
        tensor, index = self._copies.get(id(tensor), (tensor, index))
        earlier = [i for i in self._writers.get(id(tensor), ()) if i < index]
        return self.steps[earlier[-1]] if earlier else None

    def used_by(self, tensor: Tensor) -> tuple[Step, ...]:
        """Give the steps that took the tensor as an argument; for a copy of older content, those that saw that."""
        if id(tensor) in self._copies:
            tensor, end = self._copies[id(tensor)]
            start = getattr(self.made_before(tensor, end), "index", -1)
            return tuple(self.steps[i] for i in self._users.get(id(tensor), ()) if start < i <= end)
        return tuple(self.steps[i] for i in self._users.get(id(tensor), ()))

    def value(self, tensor: Tensor, index: int) -> Tensor:
        """Give what the tensor held just before step `index`: itself, or a copy where it was overwritten later."""
        for overwritten, copy in self._before.get(id(tensor), ()):
            if overwritten >= index:
                return copy
        return tensor


class _Recorder(TorchFunctionMode):
    """Writes down every call and lets it pass. Recording never raises."""

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__()
        self.trace = Trace()
        self.steps: list[Step] = []
        self.files = frozenset(os.path.realpath(file) for file in files)
        self.is_own: dict[str, bool] = {}
        self.sharing: dict[int, list[Tensor]] = {}
        self.copied = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:  # else all that happens inside would be one step
                return _seen_through()(*args, **kwargs)
        name, changed = _spell(func), None
        try:
            changed = _written(name, args, kwargs)
            if changed is not None:
                self._keep(changed)
        except Exception:
            changed = None
        output = func(*args, **kwargs)
        try:
            self._write(name, args, kwargs, output, func, changed)
        except Exception:  # a tensor that cannot be looked at: the pass goes on, without this step
            return output
        return output

    def _write(self, name: str, args: Any, kwargs: Any, output: Any, func: Any, changed: Tensor | None) -> None:
        made = list(tensors(output))
        if not made and changed is None and name not in LEAVES_TORCH:
            return
        args, kwargs, name = _as_function(name, args, kwargs)
        index = len(self.steps)
        step = Step(name, args, kwargs, output, self._place(), index, func, changed, torch.is_grad_enabled())
        self.steps.append(step)
        inputs = {id(tensor) for tensor in step.inputs}
        for tensor in step.inputs:
            users = self.trace._users.setdefault(id(tensor), [])
            if not users or users[-1] != index:
                users.append(index)
            self._share(tensor)
        for tensor in made:
            if id(tensor) not in inputs:
                self.trace._writers.setdefault(id(tensor), []).append(index)
                self._share(tensor)
        if changed is not None:
            for tensor in self._aliases(changed):
                writers = self.trace._writers.setdefault(id(tensor), [])
                if not writers or writers[-1] != index:
                    writers.append(index)

    def _share(self, tensor: Tensor) -> None:
        """Remember which tensors lie in the same memory."""
        known = self.sharing.setdefault(tensor.untyped_storage().data_ptr(), [])
        if not any(other is tensor for other in known):
            known.append(tensor)

    def _aliases(self, tensor: Tensor) -> list[Tensor]:
        known = self.sharing.get(tensor.untyped_storage().data_ptr(), [])
        return [*(other for other in known if other is not tensor), tensor]

    def _keep(self, changed: Tensor) -> None:
        """Copy what is about to be overwritten, in every tensor that shares the memory."""
        index = len(self.steps)
        for tensor in self._aliases(changed):
            self.copied += tensor.numel()
            if self.copied > COPIED_ELEMENTS:
                return
            copy = tensor.detach().clone()
            self.trace._before.setdefault(id(tensor), []).append((index, copy))
            self.trace._copies[id(copy)] = (tensor, index)

    def _place(self) -> Place | None:
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name not in self.is_own:
                self.is_own[name] = os.path.realpath(name) in self.files if self.files else _is_foreign(name)
            if self.is_own[name]:
                code = linecache.getline(name, frame.f_lineno).strip()
                self.trace.paths.setdefault(os.path.basename(name), name)
                return Place(os.path.basename(name), frame.f_lineno, code)
            frame = frame.f_back
        return None


@contextmanager
def traced(files: Sequence[str]) -> Iterator[Trace]:
    """Record what torch does inside the block. The trace is complete once the block is left, by an error too.

    Args:
        files: the person's source files; the innermost frame in one of them is the place of a step.
    """
    recorder = _Recorder(files)
    try:
        with recorder:
            yield recorder.trace
    finally:
        recorder.trace.steps = tuple(recorder.steps)


def tensors(found: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple | list):
        for inner in found:
            yield from tensors(inner)
    elif isinstance(found, dict):
        yield from tensors(tuple(found.values()))


@cache
def _seen_through() -> Callable[..., Any]:
    """F.multi_head_attention_forward without the question whether somebody overrides it as a whole."""
    known = {**vars(F), "has_torch_function": lambda _: False}
    original = F.multi_head_attention_forward
    copy = types.FunctionType(original.__code__, known, original.__name__, original.__defaults__, original.__closure__)
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


def _spell(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        owner = str(getattr(getattr(func, "__self__", None), "__name__", name))
        return owner if name == "__get__" else f"{owner}_"
    return SPOKEN.get(name, name)


def _as_function(name: str, args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], Any, str]:
    """Turn an operator's method into its function: `__rsub__(t, 2)` is sub(2, t)."""
    plain = name.strip("_")
    if name.startswith("__") and plain not in ("getitem", "setitem", "array", "invert", "get", "set"):
        if plain in ("rsub", "rtruediv", "rpow", "rmatmul", "radd", "rmul", "rand", "ror") and len(args) == 2:
            args, plain = (args[1], args[0]), plain[1:]
        return args, kwargs, {"truediv": "div", "itruediv": "div_", "iadd": "add_", "imul": "mul_"}.get(plain, plain)
    return args, kwargs, name


def _written(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Find the tensor a call writes into."""
    if isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]  # type: ignore[no-any-return]
    first = args[0] if args else kwargs.get("input", kwargs.get("self"))
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    augmented = name.startswith("__i") and name not in ("__invert__", "__int__", "__index__", "__iter__")
    if not (in_place or augmented or name == "__setitem__" or kwargs.get("inplace") is True):
        return None
    return first if isinstance(first, Tensor) else None


def _is_foreign(file: str) -> bool:
    """Whether a file belongs to the caller: neither torch's nor einops', and not ours."""
    hidden = (
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
        f"{os.sep}einops{os.sep}",
        "contextlib",
    )
    return not any(part in file for part in hidden) and not file.startswith("<")
