"""The figures of page Attention. Values travel as typed arrays, never as lists; looks come from figure_style.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ui import theme
from ui.figure_style import GRID_LINE, Layout, colour_bar, layout, plain
from ui.wire import short

ALL_LABELLED = 24  # tokens up to which every one has its label
FEW_TICKS = 9  # labels of longer axes: each costs the browser a quarter of a millisecond, and more cannot be read
MAX_LINES = 400  # strongest links drawn between tokens
MAX_LINE_TOKENS = 64  # tokens a side of the lines picture
MIN_LINE_WEIGHT = 0.01
LINE_STEPS = (0.15, 0.3, 0.5, 0.75, 1.0)  # opacities, weakest to strongest


def block_labels(tokens: Sequence[str], block: int) -> list[str]:
    """Label cells that stand for `block` tokens each: the first token, and how many follow."""
    if block == 1:
        return [short(token) for token in tokens]
    firsts = range(0, len(tokens), block)
    return [f"{short(tokens[i])} +{min(block, len(tokens) - i) - 1}" for i in firsts]


def colour_range(stage: str, values: NDArray[np.float32]) -> tuple[float, float]:
    """Give the ends of one scale for all heads: 0..1 for weights, symmetric around zero for scores."""
    if stage == "weights":
        return 0.0, 1.0
    finite = values[np.isfinite(values)]
    reach = float(np.abs(finite).max()) if finite.size else 1.0
    return -reach, reach


def own_range(values: NDArray[np.float32]) -> tuple[float, float]:
    """Give the ends of a map's own scale."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def query_bars(weights: NDArray[np.float32], k_labels: Sequence[str], head: int, title: str) -> go.Figure:
    """Draw one head's weights over the keys, (Sk,)."""
    bars = {
        "type": "bar",
        "y": weights,
        "marker": {"color": theme.head_colour(head), "line": {"width": 0}},
        "hovertemplate": "key %{x}<br>weight %{y:.5f}<extra></extra>",
    }
    axes = {
        "xaxis": _token_axis("key", k_labels) | {"tickangle": -50},
        "yaxis": {"title": {"text": "weight"}, "rangemode": "tozero", "nticks": 5, "gridcolor": GRID_LINE},
    }
    margin = {"margin": {"l": 60, "r": 8, "t": 40, "b": 90}, "bargap": 0.15}
    return go.Figure({"data": [bars], "layout": layout(title, 280) | axes | margin})


def token_lines(
    weights: NDArray[np.float32], heads: Sequence[int], q_labels: Sequence[str], k_labels: Sequence[str], title: str
) -> go.Figure:
    """Draw queries left, keys right, and a line for each of the strongest weights, (heads, Sq, Sk)."""
    flat = np.nan_to_num(weights, nan=0.0).ravel()
    strongest = np.argsort(flat)[::-1][:MAX_LINES]
    strongest = strongest[flat[strongest] > MIN_LINE_WEIGHT]
    head, query, key = np.unravel_index(strongest, weights.shape)
    steps = np.minimum((flat[strongest] * len(LINE_STEPS)).astype(int), len(LINE_STEPS) - 1)
    traces = []
    for place, number in enumerate(heads):
        for step, opacity in enumerate(LINE_STEPS):
            chosen = (head == place) & (steps == step)
            if chosen.any():
                traces.append(_line_bundle(query[chosen], key[chosen], number, opacity))
    traces += [_token_column(0.0, q_labels, "middle left"), _token_column(1.0, k_labels, "middle right")]
    axes = {
        "xaxis": {"visible": False, "range": [-0.6, 1.6]},
        "yaxis": {"visible": False, "autorange": "reversed"},
        "margin": {"l": 8, "r": 8, "t": 40, "b": 8},
    }
    height = max(320, 22 * max(len(q_labels), len(k_labels)) + 60)
    return go.Figure({"data": traces, "layout": layout(title, height) | axes})


def _line_bundle(query: NDArray[np.intp], key: NDArray[np.intp], head: int, opacity: float) -> dict[str, Any]:
    """All lines of one head and one strength, as one trace with gaps."""
    gaps = np.full(len(query), np.nan, dtype=np.float32)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.stack([np.zeros_like(gaps), np.ones_like(gaps), gaps], axis=1).ravel(),
        "y": np.stack([query, key, gaps], axis=1).astype(np.float32).ravel(),
        "line": {"color": theme.head_colour(head), "width": 0.8 + 3 * opacity},
        "opacity": opacity,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _token_column(x: float, labels: Sequence[str], position: str) -> dict[str, Any]:
    places = np.arange(len(labels), dtype=np.float32)
    return {
        "type": "scatter",
        "mode": "text",
        "x": np.full_like(places, x),
        "y": places,
        "text": [plain(label) for label in labels],
        "textposition": position,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def similarity_map(matrix: NDArray[np.float32], order: Sequence[int], title: str) -> go.Figure:
    """Draw how alike heads are, alike ones side by side; (H, H), 0 disjoint to 1 identical."""
    heatmap = {
        "type": "heatmap",
        "z": np.ascontiguousarray(matrix[np.ix_(order, order)]),
        "zmin": 0.0,
        "zmax": 1.0,
        "colorscale": theme.SEQUENTIAL,
        "colorbar": colour_bar("1 - JS divergence (bits)"),
        "hovertemplate": "heads %{y} and %{x}<br>similarity %{z:.4f}<extra></extra>",
    }
    axis = _token_axis("head", [str(head) for head in order]) | {"constrain": "domain"}
    axes = {"xaxis": axis, "yaxis": axis | {"autorange": "reversed", "scaleanchor": "x"}}
    return go.Figure({"data": [heatmap], "layout": layout(title, 400) | axes | {"margin": {"l": 60, "t": 40, "b": 50}}})


def _token_axis(title: str, labels: Sequence[str]) -> Layout:
    """Tick places and texts: every token, or as many as can be read."""
    step = 1 if len(labels) <= ALL_LABELLED else -(-len(labels) // FEW_TICKS)
    places = list(range(0, len(labels), step))
    texts = [plain(labels[place]) for place in places]
    ticks = {"tickvals": places, "ticktext": texts, "showgrid": False, "zeroline": False}
    return {"title": {"text": title}, **ticks}
