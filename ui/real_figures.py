"""Figures of page Real models: next tokens before and after, sentences against each other, and the induction check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mha_core.lenses.model_effects import Guess, InductionCheck
from ui import theme
from ui.figure_style import colour_bar, layout, plain, value_axis
from ui.wire import short

WRITTEN_LINES = 8  # lines of text up to which the numbers are written into the picture
BEFORE, AFTER = theme.HEAD_COLOURS[0], theme.HEAD_COLOURS[1]


def next_tokens(guesses: Sequence[Guess], title: str) -> go.Figure:
    """Draw the probabilities of the likeliest next tokens, before and after."""
    labels = [plain(short(guess.token)) for guess in guesses]
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(range(len(guesses))),
            "x": np.array([getattr(guess, name) for guess in guesses]),
            "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:.4f}}<extra></extra>",
        }
        for name, colour in (("before", BEFORE), ("after", AFTER))
    ]
    axes = {
        "xaxis": value_axis("probability of the next token"),
        "yaxis": {
            "tickvals": list(range(len(guesses))),
            "ticktext": labels,
            "autorange": "reversed",
            "fixedrange": True,
        },
    }
    more = {"barmode": "group", "margin": {"l": 90, "r": 8, "t": 60, "b": 44}, "legend": _legend()}
    return go.Figure({"data": bars, "layout": layout(title, 90 + 34 * len(guesses)) | axes | more})


def _legend() -> dict[str, object]:
    return {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}


def likeness(matrix: NDArray[np.float32], title: str) -> go.Figure:
    """Draw how alike the lines of the text are, (B, B), as cosines."""
    numbers = [f"{row}" for row in range(len(matrix))]
    heat = {
        "type": "heatmap",
        "z": matrix,
        "x": numbers,
        "y": numbers,
        "zmin": -1,
        "zmax": 1,
        "colorscale": theme.DIVERGING,
        "colorbar": colour_bar("cosine"),
        "texttemplate": "%{z:.2f}" if len(matrix) <= WRITTEN_LINES else "",
        "hovertemplate": "lines %{y} and %{x}<br>cosine %{z:.4f}<extra></extra>",
    }
    axes = {
        "xaxis": {"title": {"text": "line"}, "type": "category", "constrain": "domain"},
        "yaxis": {"title": {"text": "line"}, "type": "category", "autorange": "reversed", "scaleanchor": "x"},
    }
    margin = {"margin": {"l": 50, "r": 8, "t": 44, "b": 44}}
    return go.Figure({"data": [heat], "layout": layout(title, 320) | axes | margin})


def induction(check: InductionCheck, title: str) -> go.Figure:
    """Draw how well the model repeats, intact, without its strongest induction heads, and without others."""
    names = ["nothing muted", f"{len(check.heads)} strongest", *("others",) * len(check.others)]
    bars = {
        "type": "bar",
        "x": [names[0], names[1], *(f"others, draw {draw + 1}" for draw in range(len(check.others)))],
        "y": np.array([check.intact, check.strongest, *check.others]),
        "marker": {"color": [BEFORE, AFTER, *(theme.HEAD_COLOURS[2],) * len(check.others)]},
        "hovertemplate": "%{x}: %{y:.5f}<extra></extra>",
    }
    axes = {"xaxis": {"fixedrange": True}, "yaxis": value_axis("probability of the right token")}
    margin = {"margin": {"l": 60, "r": 8, "t": 44, "b": 80}}
    return go.Figure({"data": [bars], "layout": layout(title, 300) | axes | margin})
