"""The pictures of the checkpoint inspector: one number per head and matrix, and the singular values of every matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mha_core.lenses.checkpoint_stats import HeadBlock, MatrixStats
from ui import theme
from ui.figure_style import colour_bar, layout, value_axis

MATRICES = ("q", "k", "v", "out")
MEASURES: dict[str, tuple[str, Callable[[HeadBlock], float | None]]] = {
    "std": ("std", lambda block: block.moments.std),
    "norm": ("Frobenius norm", lambda block: block.moments.norm),
    "largest": ("largest singular value", lambda block: block.spectrum.largest if block.spectrum else None),
    "rank": ("effective rank", lambda block: block.spectrum.effective_rank if block.spectrum else None),
    "kurtosis": ("kurtosis, 3 for a normal", lambda block: block.moments.kurtosis),
}
MARGIN = {"l": 8, "r": 8, "t": 44, "b": 48}
WRITTEN_HEADS = 16
SHAPES = ("solid", "dash", "dot", "dashdot")
FIXED = {"fixedrange": True}


def heads(matrices: Sequence[MatrixStats], measure: str) -> go.Figure | None:
    """Draw one number of every head, a row per matrix; None where the heads are not known.

    Shared key/value heads stand above the query heads that use them.
    """
    rows = [stats for stats in matrices if stats.role in MATRICES and stats.heads]
    if not rows:
        return None
    title, of_head = MEASURES[measure]
    count = max(len(stats.heads) for stats in rows)
    values = np.full((len(rows), count), np.nan)
    for row, stats in enumerate(rows):
        found = [of_head(block) for block in stats.heads]
        numbers = np.array([np.nan if value is None else value for value in found])
        values[row] = np.repeat(numbers, count // len(numbers))
    heatmap = {
        "type": "heatmap",
        "z": values,
        "x": np.arange(count),
        "y": [f"W{stats.role}" for stats in rows],
        "colorscale": theme.SEQUENTIAL,
        "colorbar": colour_bar(title),
        "xgap": 1,
        "ygap": 2,
        "hoverongaps": False,
        "hovertemplate": f"%{{y}}, head %{{x}}<br>{title} %{{z:.5g}}<extra></extra>",
    }
    if count <= WRITTEN_HEADS:
        heatmap |= {"texttemplate": "%{z:.2g}", "textfont": {"size": 10}}
    ticks = {"tickmode": "linear", "tick0": 0, "dtick": -(-count // WRITTEN_HEADS)}
    axes = {
        "xaxis": {"title": {"text": "head"}, "showgrid": False, "zeroline": False} | ticks | FIXED,
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False} | FIXED,
        "margin": MARGIN,
    }
    return go.Figure({"data": [heatmap], "layout": layout(f"{title} of every head", 110 + 40 * len(rows)) | axes})


def spectra(matrices: Sequence[MatrixStats]) -> go.Figure | None:
    """Draw the singular values of every matrix, largest first, as a share of its own largest; None without any."""
    traces: list[dict[str, Any]] = []
    for stats in matrices:
        values = np.array(stats.spectrum.values if stats.spectrum is not None else ())
        if len(values) < 2 or not values[0] > 0:
            continue
        number = len(traces)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"W{stats.role}",
                "x": (np.arange(len(values)) / (len(values) - 1)).astype(np.float32),
                "y": np.where(values > 0, values / values[0], np.nan).astype(np.float32),
                "line": {"color": theme.head_colour(number), "width": 2, "dash": SHAPES[number % len(SHAPES)]},
                "hovertemplate": f"W{stats.role}<br>%{{y:.4g}} of the largest<extra></extra>",
            }
        )
    if not traces:
        return None
    axes = {
        "xaxis": value_axis("place of the singular value, 0 the largest, 1 the smallest") | FIXED,
        "yaxis": value_axis("over the largest", log=True) | FIXED | {"nticks": 6, "automargin": True},
        "margin": MARGIN,
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
    }
    return go.Figure({"data": traces, "layout": layout("Singular values", 300) | axes})
