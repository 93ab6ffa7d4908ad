"""What a torch pickle says it holds, found without calling or importing anything.

torch.load(weights_only=True) runs no code, but it allocates what a file claims and hashes what a file nests: a tuple
nested deep enough, as a key, ends the process (seen with torch 2.13). So the instructions are followed here first, on
plain records: containers, numbers, text, and `Described` tensors whose sizes are checked. Only what passes
goes to torch.

Source: the opcodes of Python's pickle, protocols 2 and 3, and torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

import pickle
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from pickle import decode_long
from typing import Any, BinaryIO

from mha_core.sources.checkpoints.described import (
    DTYPES,
    MAKERS,
    OPAQUE,
    SCHEMES,
    STORAGES,
    Name,
    Stored,
    UnreadableError,
    hashable,
    is_whole,
    need,
)

MAX_STEPS = 3_000_000  # instructions; a model of 1,000 tensors with its optimizer takes about 200,000
DAMAGE = (EOFError, IndexError, KeyError, struct.error, UnicodeDecodeError)  # what a damaged pickle makes of `follow`
KNOWN = {*MAKERS, *STORAGES, *DTYPES, *SCHEMES}


def _say_unknown(path: str) -> str:
    if path.startswith(("torch._utils.", "torch._tensor.")):
        return f"holds tensors of a kind that is not read here ({path})"
    what = f"holds a whole module ({path})" if path.startswith("torch.nn.modules.") else f"holds {path}"
    needs = "which needs code to be read, and code is never run here"
    return f"{what}, {needs}; save the weights alone: torch.save(model.state_dict(), path)"


class _Machine:
    """Follows one pickle: a stack, marks and a memo, as the pickle machine has them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.stored: dict[str, Stored] = {}

    def take(self, size: int) -> bytes:
        found = self.file.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def unpack(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def tuple_since_mark(self) -> None:
        items = self.since_mark()  # it changes the stack
        self.stack.append(tuple(items))

    def tuple_of(self, count: int) -> None:
        need(len(self.stack) >= count, "is cut off or damaged")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def name(self) -> None:
        module, name = (self.file.readline(1000).rstrip(b"\n").decode("utf-8") for _ in range(2))
        if (module, name) in NAME_MAPPING:
            module, name = NAME_MAPPING[module, name]
        module = IMPORT_MAPPING.get(module, module)
        path = f"{module}.{name}"
        if path not in KNOWN:
            raise UnreadableError(_say_unknown(path[:80]))
        self.stack.append(Name(path))

    def make(self) -> None:
        args, maker = self.stack.pop(), self.stack.pop()
        need(isinstance(maker, Name) and isinstance(args, tuple), "calls something that is not a function")
        need(maker.path in MAKERS, "makes tensors in a way that is not known")
        self.stack.append(MAKERS[maker.path](args))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        need(isinstance(target, dict) and isinstance(state, dict), "holds objects with a state of their own")
        need(all(isinstance(key, str) for key in state), "holds objects with a state of their own")

    def append(self, items: list[Any]) -> None:
        need(isinstance(self.stack[-1], list), "is cut off or damaged")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        need(isinstance(target, dict) and len(items) % 2 == 0, "is cut off or damaged")
        target.update((hashable(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def storage(self) -> None:
        """("storage", type, key, location, numel), and in old files a sixth that is None."""
        given = self.stack.pop()
        known = isinstance(given, tuple) and len(given) in (5, 6) and given[0] in ("storage", b"storage")
        need(known and (len(given) == 5 or given[5] is None), "refers to something that is not a storage")
        _, kind, key, location, numel = given[:5]
        need(isinstance(kind, Name) and kind.path in STORAGES, "holds numbers in a format that is not known")
        need(isinstance(key, str) and isinstance(location, str) and is_whole(numel), "holds a storage without sizes")
        stored = Stored(key, STORAGES[kind.path], numel)
        need(self.stored.setdefault(key, stored) == stored, "describes one storage in two ways")
        self.stack.append(stored)

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def follow(self) -> Any:
        for _ in range(MAX_STEPS):
            code = self.file.read(1)
            if code == pickle.STOP:
                return self.stack.pop()
            if code == b"":
                raise EOFError
            if code in _CONSTANTS:
                self.stack.append(_CONSTANTS[code])
            elif code in _STEPS:
                _STEPS[code](self)
            else:
                raise UnreadableError(
                    "is a pickle with instructions that state dicts do not need; nothing of it was run"
                )
        raise UnreadableError(f"takes more than {MAX_STEPS:,} pickle instructions; real checkpoints take far fewer")


_CONSTANTS = {
    pickle.NONE: None,
    pickle.NEWFALSE: False,
    pickle.NEWTRUE: True,
    pickle.EMPTY_TUPLE: (),
    pickle.EMPTY_SET: OPAQUE,
}
_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    pickle.PROTO: lambda m: m.unpack("B"),
    pickle.GLOBAL: _Machine.name,
    pickle.REDUCE: _Machine.make,
    pickle.BUILD: _Machine.build,
    pickle.BINPERSID: _Machine.storage,
    pickle.MARK: _Machine.mark,
    pickle.TUPLE: _Machine.tuple_since_mark,
    pickle.TUPLE1: lambda m: m.tuple_of(1),
    pickle.TUPLE2: lambda m: m.tuple_of(2),
    pickle.TUPLE3: lambda m: m.tuple_of(3),
    pickle.EMPTY_LIST: lambda m: m.stack.append([]),
    pickle.EMPTY_DICT: lambda m: m.stack.append({}),
    pickle.APPEND: lambda m: m.append([m.stack.pop()]),
    pickle.APPENDS: lambda m: m.append(m.since_mark()),
    pickle.SETITEM: lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    pickle.SETITEMS: lambda m: m.set_items(m.since_mark()),
    pickle.BININT: lambda m: m.stack.append(m.unpack("<i")),
    pickle.BININT1: lambda m: m.stack.append(m.unpack("B")),
    pickle.BININT2: lambda m: m.stack.append(m.unpack("<H")),
    pickle.LONG1: lambda m: m.stack.append(decode_long(m.take(m.unpack("B")))),
    pickle.BINFLOAT: lambda m: m.stack.append(m.unpack(">d")),
    pickle.BINUNICODE: lambda m: m.stack.append(str(m.take(m.unpack("<I")), "utf-8", "surrogatepass")),
    pickle.SHORT_BINSTRING: lambda m: m.stack.append(str(m.take(m.unpack("B")), "utf-8")),
    pickle.BINGET: lambda m: m.stack.append(m.memo[m.unpack("B")]),
    pickle.LONG_BINGET: lambda m: m.stack.append(m.memo[m.unpack("<I")]),
    pickle.BINPUT: lambda m: m.remember(m.unpack("B")),
    pickle.LONG_BINPUT: lambda m: m.remember(m.unpack("<I")),
}


def follow(file: BinaryIO) -> tuple[Any, dict[str, Stored]]:
    """Follow one pickle from where the file stands.

    Returns:
        What it holds, as plain records, and the storages it refers to, by key.

    Raises:
        UnreadableError: why it is not read. Those in DAMAGE: it is damaged.
    """
    machine = _Machine(file)
    return machine.follow(), machine.stored
