"""The large map: one head on a canvas, tokens on both axes, exact values under the crosshair, a zoom.

`map_message` packs a JSON header, the colour table, the values as float32 and which cells the mask hides; the
JavaScript beside this file paints them. It is redrawn in place: no remount, no long task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ui.wire import component, finite, pack, short

_mount = component(Path(__file__).parent)


@dataclass(frozen=True)
class MapLook:
    """How one map is shown.

    Attributes:
        title: what it is. unit: what a value is, for the readout.
        table: colours (256, 3). scale: "linear" from `low` to `high`, or "log".
        q_labels, k_labels: one per row and column.
    """

    title: str
    unit: str
    table: NDArray[np.uint8]
    scale: str
    low: float
    high: float
    q_labels: Sequence[str]
    k_labels: Sequence[str]


def map_message(values: NDArray[np.float32], hidden: NDArray[np.bool_], look: MapLook) -> bytes:
    """Pack one message.

    Args:
        values: (rows, columns). hidden: of the same shape, True where the mask hides.
    """
    header = {
        "rows": values.shape[0],
        "columns": values.shape[1],
        "title": look.title,
        "unit": look.unit,
        "scale": look.scale,
        "range": [finite(look.low), finite(look.high)],
        "q": [short(token) for token in look.q_labels],
        "k": [short(token) for token in look.k_labels],
    }
    exact = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return pack(header, look.table.tobytes(), exact, np.ascontiguousarray(hidden, dtype=np.uint8).tobytes())


def draw_map(data: bytes, *, key: str) -> None:
    """Draw the map."""
    _mount(key=key, data=data)
