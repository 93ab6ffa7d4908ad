"""The pictures of the benches on depth and on scale: lines over layers or head width, and the phase diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from mha_core.lenses.depth import EXPLODING, VANISHING, PhaseCell
from ui import theme
from ui.figure_style import Layout, colour_bar, layout, value_axis

REACH = 9  # powers of ten at which the colours of the phase diagram end
SHAPES = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star")
MARGIN = {"l": 70, "r": 8, "t": 44, "b": 50}
LEGEND = {"legend": {"orientation": "h", "y": -0.25, "font": {"size": 11}}}


def lines(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    x_axis: Layout,
    y_axis: Layout,
    *,
    dashed: Sequence[str] = (),
) -> go.Figure:
    """Draw named curves, each with a colour and a mark of its own; `dashed` are those of theory."""
    traces = []
    for number, (name, (x, y)) in enumerate(curves.items()):
        colour = theme.head_colour(number)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if name in dashed else "lines+markers",
                "name": name,
                "x": np.asarray(x, dtype=np.float32),
                "y": np.asarray(y, dtype=np.float64),
                "line": {"color": colour, "width": 2, "dash": "dash" if name in dashed else "solid"},
                "marker": {"symbol": SHAPES[number % len(SHAPES)], "size": 7},
                "hovertemplate": f"{name}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
            }
        )
    axes = {"xaxis": x_axis, "yaxis": y_axis, "margin": MARGIN | {"b": 90}}
    return go.Figure({"data": traces, "layout": layout(title, 380) | axes | LEGEND})


def depth_axis(layers: int) -> Layout:
    """The axis of layers, counted from the input."""
    return value_axis("layer, 0 next to the input") | {"range": [-0.5, layers - 0.5], "nticks": 9}


def norm_axis(title: str) -> Layout:
    """An axis of norms over many powers of ten."""
    return value_axis(title, log=True) | {"nticks": 8}


def phase(cells: Sequence[PhaseCell], against: str, title: str) -> go.Figure:
    """Draw the phase diagram: gain upwards, depth or width to the right, log10 of the gradient's norm as colour.

    Args:
        against: "layers" or "embed_dim".
    """
    gains = sorted({cell.gain for cell in cells})
    places = sorted({getattr(cell, against) for cell in cells})
    values = np.full((len(gains), len(places)), np.nan, dtype=np.float32)
    texts = [["" for _ in places] for _ in gains]
    for cell in cells:
        row, column = gains.index(cell.gain), places.index(getattr(cell, against))
        values[row, column] = np.clip(cell.log10_ratio, -REACH, REACH)
        texts[row][column] = cell.region if cell.region != "healthy" else "ok"
    heatmap = {
        "type": "heatmap",
        "z": values,
        "x": [str(place) for place in places],
        "y": [f"{gain:g}" for gain in gains],
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"size": 10},
        "zmin": -REACH,
        "zmax": REACH,
        "colorscale": theme.DIVERGING,
        "colorbar": colour_bar("log10 of the norm"),
        "hovertemplate": "gain %{y}, %{x}<br>10^%{z:.2f}: %{text}<extra></extra>",
        "hoverongaps": False,
    }
    words = {"layers": "layers L", "embed_dim": "width E, embed_dim"}
    axes = {
        "xaxis": {"title": {"text": words[against]}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": "gain"}, "type": "category", "showgrid": False},
        "margin": MARGIN,
    }
    return go.Figure({"data": [heatmap], "layout": layout(title, 420) | axes})


def band(figure: go.Figure) -> go.Figure:
    """Mark the norms between which a gradient is healthy."""
    figure.add_hrect(VANISHING, EXPLODING, fillcolor="#808080", opacity=0.15, line_width=0, layer="below")
    return figure
