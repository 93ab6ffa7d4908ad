"""Colours: one palette for every picture, safe for colour-blind readers, in light and dark.

Sequential maps are viridis, signed ones a blue-to-orange scale around zero; heads take the Okabe-Ito colours. Hidden
cells have no colour of their own: they are left transparent over a hatched ground.
"""

from __future__ import annotations

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from plotly.colors import sample_colorscale, unlabel_rgb

HEAD_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#7F7F7F")
NOT_A_NUMBER = "#ff00c8"
SEQUENTIAL = "Viridis"
DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#fdae61"], [1.0, "#b35806"]]
TABLE_STEPS = 256


def colour_table(scale: str | list[list[object]]) -> NDArray[np.uint8]:
    """Sample a colour scale at 256 places. Returns (256, 3) bytes."""
    colours = sample_colorscale(scale, [step / (TABLE_STEPS - 1) for step in range(TABLE_STEPS)])
    return np.array([_rgb(colour) for colour in colours]).round().astype(np.uint8)


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = unlabel_rgb(colour)
    return red, green, blue


def ink() -> str:
    """Give the colour of text on a picture, for the theme the browser shows."""
    return {"dark": "#c9d1db"}.get(st.context.theme.type or "", "#3d4854")


def head_colour(head: int) -> str:
    """Give a head's colour; they repeat after eight."""
    return HEAD_COLOURS[head % len(HEAD_COLOURS)]


SEQUENTIAL_TABLE = colour_table(SEQUENTIAL)
DIVERGING_TABLE = colour_table(DIVERGING)
