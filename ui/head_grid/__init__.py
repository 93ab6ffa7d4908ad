"""The head grid: all heads as small maps on a canvas, with one crosshair and one choice.

`encode` turns maps into one message: a JSON header, the colour table, exact values of the chosen query's row, and the
maps as an 8-bit gray PNG (level 0 hidden, 1 not a number, 2..255 from the head's lowest to its highest value). The
JavaScript beside this file paints it. User text travels in the header only and is put on the page as text.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image

HIDDEN, NOT_A_NUMBER, LOWEST, HIGHEST = 0, 1, 2, 255
BYTES_PER_HEAD = 17_500  # of PNG: 8 heads stay under 150 kB with everything else in the message
MIN_BUDGET_BYTES = 100_000
MAX_BUDGET_BYTES = 290_000
LABEL_CHARACTERS = 24
_HERE = Path(__file__).parent

_mount = st.components.v2.component(
    "mha_lab_head_grid",
    html='<div class="head-grid"></div>\n',
    css=(_HERE / "head_grid.css").read_text(encoding="utf-8"),
    js=(_HERE / "head_grid.js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True)
class GridMaps:
    """Maps of all heads, ready to be coloured.

    Attributes:
        png: gray PNG of H stacked maps, (H * rows, columns).
        low, high: value of levels 2 and 255, per head.
        rows, columns: cells of one map.
        fits: whether the PNG is within its share of bytes.
    """

    png: bytes
    low: tuple[float, ...]
    high: tuple[float, ...]
    rows: int
    columns: int


def byte_budget(heads: int) -> int:
    """Give the PNG bytes that the maps of so many heads may take."""
    return min(max(heads * BYTES_PER_HEAD, MIN_BUDGET_BYTES), MAX_BUDGET_BYTES)


def quantise(
    values: NDArray[np.float32], hidden: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], tuple[float, ...], tuple[float, ...]]:
    """Turn maps (H, rows, columns) into levels, each head over its own range; the largest error is range / 506."""
    shown = np.isfinite(values) & ~hidden
    low = np.where(shown, values, np.inf).min((1, 2), initial=np.inf)
    high = np.where(shown, values, -np.inf).max((1, 2), initial=-np.inf)
    low, high = np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)
    span = np.where(high > low, high - low, 1.0)[:, None, None]
    levels = np.rint((np.where(shown, values, 0) - low[:, None, None]) / span * (HIGHEST - LOWEST)) + LOWEST
    levels = np.where(hidden, HIDDEN, np.where(shown, levels, NOT_A_NUMBER)).astype(np.uint8)
    return levels, tuple(low.tolist()), tuple(high.tolist())


def entropy_bytes(levels: NDArray[np.uint8]) -> float:
    """Estimate the size of the PNG from the histogram of its levels."""
    counts = np.bincount(levels.ravel(), minlength=256)
    shares = counts[counts > 0] / levels.size
    return float(-(shares * np.log2(shares)).sum() * levels.size / 8)


def encode_maps(values: NDArray[np.float32], hidden: NDArray[np.bool_]) -> GridMaps | None:
    """Encode maps (H, rows, columns); None where they would take more bytes than the heads' budget."""
    levels, low, high = quantise(values, hidden)
    heads, rows, columns = levels.shape
    if heads * rows * columns > byte_budget(heads) and entropy_bytes(levels) > byte_budget(heads):
        return None
    buffer = io.BytesIO()
    Image.fromarray(levels.reshape(heads * rows, columns)).save(buffer, "PNG", compress_level=1)
    png = buffer.getvalue()
    return GridMaps(png, low, high, rows, columns) if len(png) <= byte_budget(heads) else None


def short(token: str) -> str:
    """Cut a label that would not fit."""
    return token if len(token) <= LABEL_CHARACTERS else token[: LABEL_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class GridLook:
    """How the maps are shown: colour table (256, 3), range of the colours, labels, and what is chosen.

    Attributes:
        scale: "fixed" (from `low` to `high`), "head" (each over its own range) or "log".
        q_labels, k_labels: one per row and column.
        head, rows: chosen head and rows.
        unit: what a value is, for the readout.
        exact: values of the chosen rows, joined, for each head, (H, columns).
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


def message(maps: GridMaps, look: GridLook) -> bytes:
    """Pack one message: length of the header, header, colour table, exact row, PNG."""
    header = {
        "heads": len(maps.low),
        "rows": maps.rows,
        "columns": maps.columns,
        "low": [_finite(value) for value in maps.low],
        "high": [_finite(value) for value in maps.high],
        "scale": look.scale,
        "range": [look.low, look.high],
        "q": [short(token) for token in look.q_labels],
        "k": [short(token) for token in look.k_labels],
        "head": look.head,
        "chosen": list(look.rows),
        "unit": look.unit,
    }
    packed = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    packed += b" " * (-(len(packed) + 4) % 4)  # what follows starts on a multiple of four bytes
    exact = np.ascontiguousarray(look.exact, dtype="<f4").tobytes()
    return struct.pack("<I", len(packed)) + packed + look.table.tobytes() + exact + maps.png


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def head_grid(data: bytes, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw the grid; a click or a key press calls `on_pick` with {"head", "rows"} as the event "pick"."""
    _mount(key=key, data=data, on_pick_change=on_pick)
