"""The values a torch pickle is made of, as plain records: names, runs of stored numbers, tensors with checked sizes.

Each function that a torch pickle may call has a stand-in here that makes the record and calls nothing of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mha_core.sources.checkpoints.parts import MAX_AXES

MAX_SIDE = 2**40

STORAGES: dict[str, torch.dtype] = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
        "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
    }.items()
}  # fmt: skip
STORAGES["torch.storage.UntypedStorage"] = torch.uint8
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
SCHEMES = {str(value) for value in vars(torch).values() if isinstance(value, torch.qscheme)}
SCALARS = (str, bytes, int, float, bool, type(None))


class UnreadableError(ValueError):
    """Why a pickle is not read, as the end of a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Name:
    """Something of Python that the pickle names; it stays a name."""

    path: str


@dataclass(frozen=True)
class Stored:
    """A run of numbers that the file claims to hold, `numel` of `dtype`."""

    key: str
    dtype: torch.dtype
    numel: int

    @property
    def size_bytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Described:
    """A tensor: what is known before its numbers are read. `odd` says why it is not read; "" where it is."""

    stored: Stored | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    odd: str = ""

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Opaque:
    """A value that is no tensor and holds none."""


OPAQUE = Opaque()


def is_whole(value: object, limit: int = MAX_SIDE) -> bool:
    return type(value) is int and 0 <= value <= limit


def need(condition: bool, sentence: str) -> None:
    if not condition:
        raise UnreadableError(sentence)


def _describe(args: tuple[Any, ...], dtype: torch.dtype | None = None, odd: str = "") -> Described:
    """Read (storage, offset, shape, strides, ...) and check that the tensor lies inside its storage."""
    need(len(args) >= 4, "holds a tensor without its sizes")
    stored, offset, shape, strides = args[:4]
    need(isinstance(stored, Stored) and is_whole(offset), "holds a tensor without a storage")
    right = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides) <= MAX_AXES
    need(right and all(map(is_whole, (*shape, *strides))), "holds a tensor whose sizes are not whole numbers")
    dtype = stored.dtype if dtype is None else dtype
    reach = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True)) + 1
    if math.prod(shape) and reach * dtype.itemsize > stored.size_bytes:
        raise UnreadableError("holds a tensor that reaches beyond its stored numbers")
    need(math.prod(shape) < 2**62, "holds a tensor with more elements than can be counted")
    if math.prod(shape) * dtype.itemsize > max(stored.size_bytes, 2**20):
        need(not odd, "holds a quantised tensor with more elements than stored numbers")
        odd = "stored numbers repeated to more than is stored"
    return Described(stored, dtype, shape, odd)


def _tensor(args: tuple[Any, ...], dtype: torch.dtype | None = None) -> Described:
    need(len(args) in (6, 7), "holds a tensor without its sizes")
    hooks, marks = args[5], args[6] if len(args) == 7 else None
    need(isinstance(args[4], bool) and (hooks is None or hooks == {}), "holds a tensor with hooks")
    if marks:  # lazily conjugated or negated numbers
        known = (
            isinstance(marks, dict)
            and set(marks) <= {"conj", "neg"}
            and all(isinstance(mark, bool) for mark in marks.values())
        )
        need(known, "holds a tensor with marks that are not known")
    return _describe(args, dtype, "stored conjugated or negated" if marks else "")


def _tensor_v1(args: tuple[Any, ...]) -> Described:
    need(len(args) == 4, "holds a tensor without its sizes")
    return _describe(args)


def _tensor_v3(args: tuple[Any, ...]) -> Described:
    need(len(args) in (7, 8), "holds a tensor without its sizes")
    dtype = DTYPES.get(args[6].path) if isinstance(args[6], Name) else None
    need(dtype is not None, "holds a tensor whose number format is not known")
    return _tensor((*args[:6], *args[7:]), dtype)


def _quantised(args: tuple[Any, ...]) -> Described:
    return _describe(args, None, "quantised")


def _parameter(args: tuple[Any, ...]) -> Described:
    need(bool(args) and isinstance(args[0], Described), "holds a parameter without a tensor")
    need(len(args) < 2 or isinstance(args[1], bool), "holds a parameter without a tensor")
    need(len(args) < 3 or args[2] is None or args[2] == {}, "holds a tensor with hooks")
    tensor: Described = args[0]
    return tensor


def _sparse(args: tuple[Any, ...]) -> Described:
    return Described(None, torch.float32, (), "sparse")


def _without_numbers(args: tuple[Any, ...]) -> Described:
    return Described(None, torch.float32, (), "meta, without numbers")


def hashable(key: Any) -> Any:
    """Only numbers, text and short tuples of them are keys: hashing anything nested may take for ever."""
    flat = key if isinstance(key, tuple) and len(key) < 10 else (key,)
    need(all(isinstance(part, SCALARS) for part in flat), "holds a dictionary whose keys are neither text nor numbers")
    return key


def _ordered(args: tuple[Any, ...]) -> dict[Any, Any]:
    """OrderedDict() or OrderedDict([[key, value], ...])."""
    pairs = args[0] if args else []
    need(len(args) < 2 and isinstance(pairs, list), "holds an ordered dictionary that cannot be read")
    need(all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs), "holds pairs that are none")
    return {hashable(key): value for key, value in pairs}


def _counter(args: tuple[Any, ...]) -> Opaque:
    need(len(args) < 2 and all(isinstance(arg, dict) for arg in args), "holds a counter that cannot be read")
    return OPAQUE


def _set(args: tuple[Any, ...]) -> Opaque:
    items = args[0] if args else []
    need(isinstance(items, list) and all(isinstance(item, SCALARS) for item in items), "holds a set of containers")
    return OPAQUE


def _plain(args: tuple[Any, ...]) -> Opaque:
    """Devices, sizes, layouts: made of a few numbers and words."""
    flat = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    need(len(flat) <= MAX_AXES and all(isinstance(arg, int | str) for arg in flat), "holds sizes that are none")
    return OPAQUE


def _bytes(args: tuple[Any, ...]) -> Opaque:
    known = len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin1", "latin-1", "utf-8")
    need(known, "holds bytes in a coding that is not known")
    return OPAQUE


MAKERS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "builtins.set": _set,
    "torch.Size": _plain,
    "torch.device": _plain,
    "torch.serialization._get_layout": _plain,
    "_codecs.encode": _bytes,
    "torch._utils._rebuild_tensor": _tensor_v1,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _without_numbers,
}
