"""The head grid: all heads as small maps on a canvas, with one crosshair and one choice.

`encode_maps` turns maps into levels: 0 hidden, 1 not a number, 2..255 from the head's lowest to its highest value; as
bare bytes where they are few, as an 8-bit gray PNG where they are many. `message` packs them with a JSON header, the
colour table and the exact values of the chosen queries; the JavaScript beside this file paints it.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ui.wire import component, finite, pack, short

HIDDEN, NOT_A_NUMBER, LOWEST, HIGHEST = 0, 1, 2, 255
FINEST = HIGHEST - LOWEST
VALUE_STEPS = (FINEST, 126, 63, 42, 31)  # of a head's range; exact values of the chosen rows are sent beside them
ESTIMATE_SLACK = 1.08  # Huffman codes are whole bits
GRAYS = bytes(np.repeat(np.arange(256, dtype=np.uint8), 3))
Ends = tuple[float, ...]
BYTES_PER_HEAD = 14_400  # of the maps: 8 heads stay under 150 kB with the component, labels and exact rows
MIN_BUDGET_BYTES = 100_000
MAX_BUDGET_BYTES = 260_000
_mount = component(Path(__file__).parent)


@dataclass(frozen=True)
class GridMaps:
    """Maps of all heads, ready to be coloured.

    Attributes:
        levels: H stacked maps, (H * rows, columns), as bare bytes or as a gray PNG.
        is_png: which of the two.
        low, high: value of levels 2 and 255, per head.
        rows, columns: cells of one map.
    """

    levels: bytes
    is_png: bool
    low: tuple[float, ...]
    high: tuple[float, ...]
    rows: int
    columns: int


def byte_budget(heads: int) -> int:
    """Give the PNG bytes that the maps of so many heads may take."""
    return min(max(heads * BYTES_PER_HEAD, MIN_BUDGET_BYTES), MAX_BUDGET_BYTES)


def quantise(values: NDArray[np.float32], hidden: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], Ends, Ends]:
    """Turn maps (H, rows, columns) into levels, each head over its own range; the largest error is range / 506.

    Returns:
        Levels, and the values of the lowest and the highest level per head.
    """
    shown = np.isfinite(values) & ~hidden
    low = np.where(shown, values, np.inf).min((1, 2), initial=np.inf)
    high = np.where(shown, values, -np.inf).max((1, 2), initial=-np.inf)
    low, high = np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)
    span = np.where(high > low, high - low, 1.0)[:, None, None]
    levels = np.rint((np.where(shown, values, 0) - low[:, None, None]) / span * FINEST) + LOWEST
    levels = np.where(hidden, HIDDEN, np.where(shown, levels, NOT_A_NUMBER)).astype(np.uint8)
    return levels, tuple(low.tolist()), tuple(high.tolist())


def coarser(steps: int) -> NDArray[np.uint8]:
    """Give a table that rounds levels to so many steps of a head's range; hidden and NaN stay. (256,) levels."""
    places = np.rint(np.arange(FINEST + 1) * steps / FINEST)
    return np.concatenate([[HIDDEN, NOT_A_NUMBER], np.rint(places * FINEST / steps) + LOWEST]).astype(np.uint8)


def estimated_bytes(counts: NDArray[np.intp]) -> float:
    """Estimate the PNG's size by the entropy of what is shown; runs of hidden cells cost next to nothing."""
    shown = counts[NOT_A_NUMBER:][counts[NOT_A_NUMBER:] > 0]
    return float(-(shown * np.log2(shown / shown.sum())).sum() / 8) * ESTIMATE_SLACK


def encode_maps(values: NDArray[np.float32], hidden: NDArray[np.bool_]) -> GridMaps | None:
    """Encode maps (H, rows, columns), with fewer steps of value where more would take too many bytes.

    Returns:
        None where even the coarsest steps exceed the heads' budget: then the maps have to be pooled.
    """
    heads, rows, columns = values.shape
    levels, low, high = quantise(values, hidden)
    if levels.size <= byte_budget(heads):  # painted at once: a browser decodes a PNG only when nothing else is waiting
        return GridMaps(levels.tobytes(), False, low, high, rows, columns)
    counts = np.bincount(levels.ravel(), minlength=256)
    for steps in VALUE_STEPS:
        table = coarser(steps)
        merged = np.bincount(table, weights=counts, minlength=256)
        if estimated_bytes(merged) > byte_budget(heads):
            continue
        png = gray_png(table[levels].reshape(heads * rows, columns))
        if len(png) <= byte_budget(heads):
            return GridMaps(png, True, low, high, rows, columns)
    return None


def gray_png(levels: NDArray[np.uint8]) -> bytes:
    """Write a PNG of one byte per cell.

    A palette keeps PNG's row filters out and Z_RLE keeps deflate from searching matches: maps are noise and runs, and
    both only cost time and bytes on noise.
    """
    image = Image.frombytes("P", (levels.shape[1], levels.shape[0]), np.ascontiguousarray(levels).tobytes())
    image.putpalette(GRAYS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
    return buffer.getvalue()


@dataclass(frozen=True)
class GridLook:
    """How the maps are shown: colour table (256, 3), range of the colours, labels, and what is chosen.

    Attributes:
        scale: "fixed" (from `low` to `high`), "head" (each over its own range) or "log".
        q_labels, k_labels: one per row and column.
        head, rows: chosen head and rows.
        unit: what a value is, for the readout.
        exact: values of the chosen rows, joined, for each head, (H, columns).
        names: what each map is; heads by number unless said otherwise.
        nouns: what a row and a column is.
        per_line: for hundreds of maps, shown small and without bars: how many stand side by side; 0 for a few.
    """

    table: NDArray[np.uint8]
    scale: str
    low: float
    high: float
    q_labels: Sequence[str]
    k_labels: Sequence[str]
    head: int
    rows: Sequence[int]
    unit: str
    exact: NDArray[np.float32]
    names: Sequence[str] = ()
    nouns: tuple[str, str] = ("query", "key")
    per_line: int = 0


def message(maps: GridMaps, look: GridLook) -> bytes:
    """Pack one message: length of the header, header, colour table, exact row, PNG."""
    header = {
        "heads": len(maps.low),
        "rows": maps.rows,
        "columns": maps.columns,
        "low": [finite(value) for value in maps.low],
        "high": [finite(value) for value in maps.high],
        "scale": look.scale,
        "range": [look.low, look.high],
        "q": [short(token) for token in look.q_labels],
        "k": [short(token) for token in look.k_labels],
        "head": look.head,
        "chosen": list(look.rows),
        "unit": look.unit,
        "names": list(look.names) or [f"head {head}" for head in range(len(maps.low))],
        "nouns": look.nouns,
        "perLine": look.per_line,
        "png": maps.is_png,
    }
    exact = np.ascontiguousarray(look.exact, dtype="<f4").tobytes()
    return pack(header, look.table.tobytes(), exact, maps.levels)


def head_grid(data: bytes, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw the grid; a click or a key press calls `on_pick` with {"head", "rows"} as the event "pick"."""
    _mount(key=key, data=data, on_pick_change=on_pick)
