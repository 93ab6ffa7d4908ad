"""What all figures share: layout, axes and colour bars as plain dictionaries, and how to escape what a person typed.

Figures are written as plain dictionaries and checked once at the end: building them from graph objects takes ten times
as long, and a slider waits for it.
"""

from __future__ import annotations

from typing import Any

from ui import theme

GRID_LINE = "rgba(128,128,128,0.3)"
Layout = dict[str, Any]


def plain(text: str) -> str:
    """Keep plotly from reading markup in a token: it knows a few HTML tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def colour_bar(title: str) -> Layout:
    """Give a slim colour bar with its unit."""
    return {"thickness": 10, "nticks": 5, "outlinewidth": 0, "title": {"text": title, "side": "right"}}


def layout(title: str, height: int) -> Layout:
    """Give the layout of a figure: title, height in pixels, and the look of both themes."""
    return {
        "template": "none",
        "font": {"color": theme.ink(), "family": "Source Sans, sans-serif", "size": 12},
        "title": {"text": title, "font": {"size": 14}, "x": 0.01},
        "height": height,
        "margin": {"l": 80, "r": 8, "t": 100, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(128,128,128,0.14)",
        "modebar": {"remove": ["select2d", "lasso2d", "autoScale2d"]},
    }


def value_axis(title: str, *, log: bool = False) -> Layout:
    """Give an axis of numbers, with its unit in the title."""
    axis: Layout = {"title": {"text": title}, "gridcolor": GRID_LINE, "zeroline": False}
    return axis | ({"type": "log", "exponentformat": "power"} if log else {"rangemode": "tozero", "nticks": 6})
