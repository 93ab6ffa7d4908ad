"""A page as the tests see it: open it with a link, read its pictures back into numbers, read the head grid's message.

Arrays of a plotly figure travel as base64 of their bytes; the head grid's message is a length, a JSON header, a colour
table of 768 bytes, one exact row per head as float32, and a gray PNG of all maps stacked; the large map's is the same
with all values of one map, and a byte for each cell that says whether it is hidden. All are decoded here without the
code that wrote them.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from streamlit.testing.v1 import AppTest

from mha_core import Experiment
from ui.view import VIEW_FIELDS

ROOT = Path(__file__).resolve().parents[2]
ATTENTION = "pages/1_Attention.py"
TIMEOUT_S = 60


def open_page(script: str = ATTENTION, /, **query: str) -> AppTest:
    """Open a page with a link; it must not fail."""
    page = AppTest.from_file(str(ROOT / script), default_timeout=TIMEOUT_S)
    for name, value in query.items():
        page.query_params[name] = value
    return fine(page.run())


def fine(page: AppTest) -> AppTest:
    """Give the page back if nothing failed on it."""
    assert not page.exception, [element.proto for element in page.exception]
    return page


def shown(page: AppTest) -> Experiment:
    """The experiment that the address of a page describes, view settings aside."""
    link = {name: value[0] if isinstance(value, list) else value for name, value in page.query_params.items()}
    found, problems = Experiment.from_query({name: value for name, value in link.items() if name not in VIEW_FIELDS})
    assert problems == []
    return found


def link(page: AppTest) -> dict[str, str]:
    """The address of a page."""
    return {n: v[0] if isinstance(v, list) else v for n, v in page.query_params.items()}


def whole(page: AppTest) -> AppTest:
    """The page with all its widgets: after a fragment's rerun AppTest knows the fragment alone."""
    return page if page.subheader else fine(page.run())


def press(page: AppTest, key: str) -> AppTest:
    """Press a button, and let the page answer."""
    page.button(key=key).click()
    return fine(page.run())


def set_widget(page: AppTest, name: str, value: Any) -> AppTest:
    """Give the widget of a field a value, and let the page answer; that may be the answer of a fragment alone."""
    whole(page).get_by_key(f"field_{name}").set_value(value)
    return fine(page.run())


def decode(value: Any) -> Any:
    """Turn plotly's typed arrays into numpy arrays, at any depth."""
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype="<" + value["dtype"])
        return array.reshape([int(side) for side in str(value["shape"]).split(",")]) if "shape" in value else array
    if isinstance(value, dict):
        return {name: decode(item) for name, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def figures(page: AppTest) -> list[dict[str, Any]]:
    """All plotly figures of a page, arrays decoded."""
    return [decode(json.loads(element.proto.spec)) for element in page.get("plotly_chart")]


def component(page: AppTest, name: str) -> bytes:
    """What the one component of that name was sent."""
    (content,) = [e.proto.bytes for e in page.get("bidi_component") if e.proto.component_name == f"mha_lab_{name}"]
    return bytes(content)


@dataclass(frozen=True)
class LargeMap:
    """A decoded large map: header, values (rows, columns), and which cells are hidden."""

    header: dict[str, Any]
    exact: NDArray[np.float32]
    hidden: NDArray[np.bool_]

    @property
    def values(self) -> NDArray[np.float32]:
        """The values, NaN where hidden."""
        return np.where(self.hidden, np.float32(np.nan), self.exact)


def read_large_map(content: bytes) -> LargeMap:
    """Decode a message of the large map."""
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    shape, at = (header["rows"], header["columns"]), 4 + length + 768
    count = shape[0] * shape[1]
    exact = np.frombuffer(content, "<f4", count, at).reshape(shape)
    hidden = np.frombuffer(content, np.uint8, count, at + 4 * count).reshape(shape)
    assert len(content) == at + 5 * count
    return LargeMap(header, exact, hidden.astype(bool))


def large_map(page: AppTest) -> LargeMap:
    """The large map of a page."""
    return read_large_map(component(page, "large_map"))


def lower(page: AppTest) -> dict[str, Any]:
    """The figure below the maps."""
    (figure,) = figures(page)
    return figure


@dataclass(frozen=True)
class GridMessage:
    """A decoded message: header, colour table (256, 3), exact row (H, columns), levels (H, rows, columns)."""

    header: dict[str, Any]
    table: NDArray[np.uint8]
    exact: NDArray[np.float32]
    levels: NDArray[np.uint8]
    size_bytes: int

    def values(self) -> NDArray[np.float64]:
        """What the levels mean: NaN where hidden or not a number, else between the head's lowest and highest value."""
        low, high = (np.array(self.header[end])[:, None, None] for end in ("low", "high"))
        values = low + (self.levels.astype(float) - 2) / 253 * (high - low)
        return np.where(self.levels < 2, np.nan, values)

    def tolerance(self) -> NDArray[np.float64]:
        """Half a level of each head, (H, 1, 1), with room for float32."""
        span = np.array(self.header["high"]) - np.array(self.header["low"])
        return (span / 506 * 1.001 + 1e-6 * (1 + np.abs(self.header["high"])))[:, None, None]


def read_message(content: bytes) -> GridMessage:
    """Decode a message of the head grid."""
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    heads, rows, columns = header["heads"], header["rows"], header["columns"]
    table_at, exact_at = 4 + length, 4 + length + 768
    maps_at = exact_at + 4 * heads * columns
    table = np.frombuffer(content, np.uint8, 768, table_at).reshape(256, 3)
    exact = np.frombuffer(content, "<f4", heads * columns, exact_at).reshape(heads, columns)
    levels = np.frombuffer(content, np.uint8, offset=maps_at)
    if header["png"]:
        pixels = np.asarray(Image.open(io.BytesIO(content[maps_at:])).convert("RGB"))  # as a browser reads it
        assert (pixels == pixels[..., :1]).all(), "the picture is not gray"
        levels = pixels[..., 0]
    return GridMessage(header, table, exact, levels.reshape(heads, rows, columns), len(content))


def grid(page: AppTest) -> GridMessage:
    """The head grid of a page."""
    return read_message(component(page, "head_grid"))


def texts(page: AppTest) -> str:
    """Everything a page says in Markdown, warnings, errors and captions."""
    groups = (page.markdown, page.warning, page.error, page.info, page.caption, page.subheader)
    return "\n".join(element.value for group in groups for element in group)
