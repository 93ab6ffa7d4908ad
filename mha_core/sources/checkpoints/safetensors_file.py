"""Files of the safetensors format, read one tensor at a time; the list needs their header alone.

The length of the header is checked here, before anything is read; its content by the safetensors library, which refuses
unknown formats, shapes that overflow, and offsets that overlap, leave holes or leave the file.

Source: the safetensors format, huggingface/safetensors, README.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mha_core.sources.checkpoints.parts import (
    MAX_TENSORS,
    Contents,
    TensorInfo,
    check_size,
    name_problem,
    refuse,
    say_left_out,
)

MAX_HEADER_BYTES = (
    16 * 2**20
)  # the format allows 100 MB, which take over a GB to parse; published models need under 1 MB
LENGTH_BYTES = 8
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}


def looks_like_safetensors(beginning: bytes) -> bool:
    """Whether a file that begins so may be one: after the length of the header stands its brace."""
    return beginning[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def _check_header(path: Path) -> None:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(LENGTH_BYTES)
    (length,) = struct.unpack("<Q", beginning.ljust(LENGTH_BYTES, b"\0"))
    if len(beginning) < LENGTH_BYTES or length + LENGTH_BYTES > size_bytes:
        raise refuse(path, f"claims a header of {length:,} bytes, but the whole file has {size_bytes:,}: it is cut off")
    if length > MAX_HEADER_BYTES:
        raise refuse(path, f"claims a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")


def _list(path: Path) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    tensors: dict[str, TensorInfo] = {}
    left_out: list[str] = []
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        if len(names) > MAX_TENSORS:
            raise refuse(path, f"has {len(names):,} tensors; at most {MAX_TENSORS:,} are listed")
        for name in names:
            part = file.get_slice(name)
            shape, dtype = tuple(part.get_shape()), DTYPES.get(part.get_dtype())
            problem = name_problem(name, shape) or ("" if dtype else "a number format that torch does not have")
            problem = problem or ("axes too long for torch" if max(shape, default=0) >= 2**62 else "")
            if problem or dtype is None:
                left_out.append(problem)
            else:
                size_bytes = math.prod(shape) * dtype.itemsize
                tensors[name] = TensorInfo(shape, str(dtype).removeprefix("torch."), size_bytes)
    return tensors, say_left_out(left_out)


def open_safetensors(path: Path) -> Contents:
    """Open a safetensors file; nothing but its header is read.

    Raises:
        MhaError: field "checkpoint".
    """
    _check_header(path)
    try:
        tensors, notes = _list(path)
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ").partition(":")[0]
        raise refuse(path, f"has a damaged safetensors header: {reason[:100]}") from error
    if not tensors:
        raise refuse(path, "holds no tensors that can be read" if notes else "holds no tensors")

    def read(name: str) -> Tensor:
        check_size(path, f"{name[:60]} takes", tensors[name].size_bytes)
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor.clone()
        except (SafetensorError, OSError, RuntimeError) as error:
            raise refuse(path, f"{name[:60]} cannot be read; the file may have changed") from error

    return Contents("safetensors", tensors, read, notes)
