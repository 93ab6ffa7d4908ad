"""A matrix of 0 and 1 from a file: text (csv, spaces) or .npy, never unpickled, its size known before it is read."""

from __future__ import annotations

import io
import math

import numpy as np

from mha_core.errors import MhaError
from mha_core.masks import MAX_CUSTOM_SIDE, parse_custom

MAX_FILE_BYTES = 4 * 2**20


def read_matrix(name: str, content: bytes) -> tuple[str, ...]:
    """Read a custom mask from an uploaded file.

    Args:
        name: file name; ".npy" decides how the content is read.
        content: the bytes.

    Returns:
        Rows of 0 and 1; any number other than 0 counts as 1.

    Raises:
        MhaError: field "custom_mask"; too large, damaged, or not a matrix.
    """
    if len(content) > MAX_FILE_BYTES:
        raise MhaError("custom_mask", f"{len(content):,} bytes", f"a file of at most {MAX_FILE_BYTES:,} bytes")
    if name.lower().endswith(".npy"):
        return parse_custom([list(row) for row in _read_npy(content).astype(bool)])
    try:
        return parse_custom(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise MhaError("custom_mask", name, "a text file", problem=f"{name} is not a text file") from None


def _read_npy(content: bytes) -> np.ndarray:
    """Load an array after a look at its header: a header may claim any size."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
        shape, _, dtype = read_header(stream)
        if len(shape) != 2 or math.prod(shape) > MAX_CUSTOM_SIDE**2 or dtype.hasobject:
            raise ValueError(f"it holds {dtype} of shape {shape}")
        return np.load(io.BytesIO(content), allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, EOFError, TypeError) as error:
        problem = f"the .npy file is not a matrix of at most {MAX_CUSTOM_SIDE} x {MAX_CUSTOM_SIDE} numbers: {error}"
        raise MhaError("custom_mask", "a .npy file", "a matrix of numbers", problem=problem) from error
