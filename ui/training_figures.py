"""The figures of the training race: loss, accuracy and gradient norm over the steps, one line for each racer.

Gradient norms have a logarithmic axis, on which zero has no place; exact zeros stand on a line of their own below the
smallest norm, labelled 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mha_core.init_schemes import TARGETS
from mha_core.lenses.training import GOAL, Track
from ui import theme
from ui.figure_style import GRID_LINE, Layout, layout, value_axis

PLOT_HEIGHT, LEGEND_LINE = 278, 18  # pixels
MAX_DECADES = 6  # labelled one by one
LEGEND: Layout = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "entrywidth": 105}


def name_of(racer: str) -> str:
    """Write the name of a racer."""
    return racer.replace("_", " ")


def _line(track: Track, place: int, steps: Sequence[int], values: NDArray[np.float32], hover: str) -> Layout:
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > 1 else "markers",
        "name": name_of(track.racer),
        "x": np.array(steps, dtype=np.int32),
        "y": values,
        "line": {"color": theme.head_colour(place), "width": 2},
        "marker": {"color": theme.head_colour(place)},
        "hovertemplate": f"{name_of(track.racer)}, step %{{x}}<br>{hover}<extra></extra>",
    }


def _figure(title: str, traces: Sequence[Layout], y_axis: Layout, last: int, **more: Any) -> go.Figure:
    legend = LEGEND_LINE * len(traces)  # on a phone and in three columns alike, each name takes a line
    axes = {
        "xaxis": value_axis("step") | {"range": [0, last], "nticks": 5},
        "yaxis": y_axis,
        "legend": LEGEND,
        "showlegend": True,
        "margin": {"l": 58, "r": 12, "t": 36, "b": 42 + legend},
    }
    return go.Figure({"data": list(traces), "layout": layout(title, PLOT_HEIGHT + legend) | axes | more})


def loss(tracks: Sequence[Track], last: int) -> go.Figure:
    """Draw the loss of every step, up to step `last`."""
    lines = []
    for place, track in enumerate(tracks):
        values = np.array([point.loss for point in track.points], dtype=np.float32)
        steps = [point.step for point in track.points]
        lines.append(_line(track, place, steps, values, "loss %{y:.4f} nats"))
    return _figure("Loss of each batch", lines, value_axis("cross-entropy, nats"), last)


def accuracy(tracks: Sequence[Track], last: int, chance: float) -> go.Figure:
    """Draw the held-out accuracy at the recorded steps, with chance and the goal."""
    lines = [
        _line(
            track,
            place,
            [stop.step for stop in track.stops],
            np.array([100 * stop.accuracy for stop in track.stops], dtype=np.float32),
            "%{y:.1f}% right",
        )
        for place, track in enumerate(tracks)
    ]
    marks = [(100 * chance, f"chance {chance:.1%}", "bottom"), (100 * GOAL, f"{GOAL:.0%}", "top")]
    dots = {"color": theme.ink(), "width": 1, "dash": "dot"}
    place_of_note = {"xref": "paper", "x": 1, "xanchor": "right", "showarrow": False}
    shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": dots} for y, _, _ in marks]
    notes = [place_of_note | {"text": text, "y": y, "yanchor": side} for y, text, side in marks]
    axis = value_axis("held-out accuracy, %") | {"range": [0, 104], "rangemode": "normal"}
    return _figure("Accuracy", lines, axis, last, shapes=shapes, annotations=notes)


def gradient(tracks: Sequence[Track], last: int, matrices: Sequence[str]) -> go.Figure:
    """Draw the gradient norm of every step, joined over some of the matrices q, k, v, out and over all layers."""
    norms = [np.array([point.gradient(matrices) for point in track.points]) for track in tracks]
    floor, axis = _axis_with_zero(np.concatenate([np.zeros(0), *norms]))
    lines = []
    for place, (track, found) in enumerate(zip(tracks, norms, strict=True)):
        shown = np.where(found == 0, floor, found).astype(np.float32)
        steps = [point.step for point in track.points]
        line = _line(track, place, steps, shown, "gradient norm %{customdata:.3g}")
        lines.append(line | {"customdata": found.astype(np.float32)})
    which = "attention" if tuple(matrices) == TARGETS else ", ".join(matrices)
    return _figure(f"Gradient norm, {which}", lines, axis, last)


def _axis_with_zero(norms: NDArray[np.float64]) -> tuple[float, Layout]:
    """Give the place where zeros are drawn, and the axis that labels it."""
    axis = {"title": {"text": "L2 norm"}, "gridcolor": GRID_LINE, "zeroline": False, "type": "log"}
    positive = norms[(norms > 0) & np.isfinite(norms)]
    low, high = (positive.min(), positive.max()) if positive.size else (1e-1, 1.0)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / MAX_DECADES))
    decades = list(range(first, last + 1, every))
    places, texts = [10.0**power for power in decades], [f"10<sup>{power}</sup>" for power in decades]
    below = first - every
    if (norms == 0).any():
        places, texts = [10.0**below, *places], ["0", *texts]
    ends = {"range": [(below if (norms == 0).any() else first) - 0.15, last + 0.1]}
    return 10.0**below, axis | {"tickvals": places, "ticktext": texts} | ends
