"""GGUF files whose content is known to be good: their metadata, and rows of one tensor as numbers.

gguf-py's own reader makes an array object of every string, which takes seconds for a vocabulary; this one takes a tenth
of a second for 49,152 tokens and 48,900 merges. What quantised blocks mean is left to gguf-py.

Source: the GGUF specification, versions 2 and 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32  # bytes
_HEADER = 4  # bytes of the word "GGUF"


class _Cursor:
    """A place in the file that moves on with each value read; all numbers are little-endian."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.at = content, _HEADER

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{count}{code}", self.content, self.at)
        self.at += struct.calcsize(code) * count
        return values

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def text(self) -> str:
        length = self.number("Q")
        self.at += length
        return str(self.content[self.at - length : self.at], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        item_kind, count = self.number("I"), self.number("Q")
        if item_kind in _NUMBERS:
            return self.numbers(_NUMBERS[item_kind], count)
        return tuple(self.value(item_kind) for _ in range(count))


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: its shape as in torch, ggml's number of its format, and its first byte in the file."""

    shape: tuple[int, ...]
    ggml_type: int
    at: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An opened file: metadata by key, tensors by name; the content is mapped, not read."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    content: NDArray[np.uint8]

    def rows(self, name: str, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Read some rows of a matrix of shape (N, width) and turn its blocks into numbers.

        Returns:
            (len(numbers), width), float32. A row is whole blocks, so nothing else is read.
        """
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # not at the top: it loads a YAML parser
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        height, width = tensor.shape
        kind = GGMLQuantizationType(tensor.ggml_type)
        block_length, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = width // block_length * block_bytes
        stored = self.content[tensor.at : tensor.at + height * row_bytes].reshape(height, row_bytes)
        found: NDArray[np.float32] = dequantize(np.array(stored[list(numbers)]), kind)
        return found


def open_gguf(path: Path) -> GgufFile:
    """Read the metadata and the table of tensors."""
    content = np.memmap(path, np.uint8, mode="r")
    cursor = _Cursor(content.data)
    _version, tensor_count, key_count = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    metadata = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(key_count)}
    table = []
    for _ in range(tensor_count):
        name, dimensions = cursor.text(), cursor.number("I")
        table.append((name, cursor.numbers("Q", dimensions)[::-1], cursor.number("I"), cursor.number("Q")))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: StoredTensor(shape, kind, start + offset) for name, shape, kind, offset in table}
    return GgufFile(metadata, tensors, content)
