"""How data travels to a component of our own: one message of a header and raw arrays, and labels that fit.

A component's html, css and js never contain user text; it travels in the header and is put on the page as text.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import streamlit as st

LABEL_CHARACTERS = 24
_SHARED = Path(__file__).with_name("wire.js").read_text(encoding="utf-8")


def component(folder: Path) -> Any:
    """Register the component whose JavaScript and CSS bear the name of their folder. Returns its mount function."""
    js, css = (folder.joinpath(f"{folder.name}.{ending}").read_text(encoding="utf-8") for ending in ("js", "css"))
    html = f'<div class="{folder.name.replace("_", "-")}"></div>\n'
    return st.components.v2.component(f"mha_lab_{folder.name}", html=html, css=css, js=_SHARED + js)


def pack(header: dict[str, Any], *arrays: bytes) -> bytes:
    """Write a message: length of the header, header, arrays. The arrays begin at a multiple of four bytes."""
    packed = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    packed += b" " * (-(len(packed) + 4) % 4)
    return b"".join([struct.pack("<I", len(packed)), packed, *arrays])


def finite(value: float) -> float:
    """Replace NaN and infinities by 0: JSON has no word for them."""
    return value if math.isfinite(value) else 0.0


def short(token: str) -> str:
    """Cut a label that would not fit."""
    return token if len(token) <= LABEL_CHARACTERS else token[: LABEL_CHARACTERS - 1] + "…"
