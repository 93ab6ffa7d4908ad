"""Data to plotly figures. Values travel as typed arrays, never as lists; looks come from theme.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ui import theme
from ui.head_grid import short

MAX_TICKS = 18  # labels on an axis: each costs the browser a fifth of a millisecond, and more cannot be read
MAX_LINES = 400  # strongest links drawn between tokens
MAX_LINE_TOKENS = 64  # tokens a side of the lines picture
LINE_STEPS = (0.15, 0.3, 0.5, 0.75, 1.0)  # opacities, weakest to strongest


def block_labels(tokens: Sequence[str], block: int) -> list[str]:
    """Label cells that stand for `block` tokens each: the first token, and how many follow."""
    if block == 1:
        return [short(token) for token in tokens]
    firsts = range(0, len(tokens), block)
    return [f"{short(tokens[i])} +{min(block, len(tokens) - i) - 1}" for i in firsts]


def colour_range(stage: str, colour: str, values: NDArray[np.float32]) -> tuple[float, float]:
    """Give the ends of the colour scale: 0..1 for weights, symmetric around zero for scores, or the map's own."""
    finite = values[np.isfinite(values)]
    if colour == "head" or (colour == "log" and stage != "weights"):
        return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if stage == "weights":
        return 0.0, 1.0
    reach = float(np.abs(finite).max()) if finite.size else 1.0
    return -reach, reach


def large_map(
    values: NDArray[np.float32],
    q_labels: Sequence[str],
    k_labels: Sequence[str],
    *,
    stage: str,
    colour: str,
    title: str,
) -> go.Figure:
    """Draw one head's map, (Sq, Sk) with NaN where hidden; the exact value is in the hover."""
    low, high = colour_range(stage, colour, values)
    is_log = colour == "log" and stage == "weights"
    shown = np.log10(np.maximum(values, 1e-4)) if is_log else values
    heatmap = go.Heatmap(
        z=shown,
        customdata=values if is_log else None,
        zmin=-4.0 if is_log else low,
        zmax=0.0 if is_log else high,
        colorscale=theme.SEQUENTIAL if stage == "weights" else theme.DIVERGING,
        colorbar={
            "thickness": 10,
            "len": 0.9,
            "title": {"text": f"log10 {stage}" if is_log else stage, "side": "right"},
        },
        hovertemplate=f"query %{{y}} → key %{{x}}<br>{stage} %{{{'customdata' if is_log else 'z'}:.5f}}<extra></extra>",
        hoverongaps=False,
    )
    figure = go.Figure(heatmap)
    _layout(figure, title, height=460)
    figure.update_xaxes(**_token_axis(k_labels), title="key", side="top", tickangle=-50, constrain="domain")
    figure.update_yaxes(
        **_token_axis(q_labels), title="query", autorange="reversed", scaleanchor="x", constrain="domain"
    )
    return figure


def _token_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Tick places and texts: every token, or as many as can be read."""
    step = -(-len(labels) // MAX_TICKS)
    places = list(range(0, len(labels), step))
    return {"tickvals": places, "ticktext": [plain(labels[i]) for i in places], "showgrid": False, "zeroline": False}


def plain(text: str) -> str:
    """Keep plotly from reading markup in a token: it knows a few HTML tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def query_bars(weights: NDArray[np.float32], k_labels: Sequence[str], head: int, title: str) -> go.Figure:
    """Draw one head's weights over the keys, (Sk,)."""
    hover = "key %{x}<br>weight %{y:.5f}<extra></extra>"
    figure = go.Figure(
        go.Bar(y=weights, marker={"color": theme.head_colour(head), "line": {"width": 0}}, hovertemplate=hover)
    )
    _layout(figure, title, height=260)
    figure.update_layout(bargap=0.15)
    figure.update_xaxes(**_token_axis(k_labels), title="key", tickangle=-50)
    figure.update_yaxes(title="weight", rangemode="tozero", nticks=5)
    return figure


def token_lines(
    weights: NDArray[np.float32], heads: Sequence[int], q_labels: Sequence[str], k_labels: Sequence[str], title: str
) -> go.Figure:
    """Draw queries left, keys right, and a line for each of the strongest weights, (heads, Sq, Sk)."""
    figure = go.Figure()
    flat = np.nan_to_num(weights, nan=0.0).ravel()
    strongest = np.argsort(flat)[::-1][:MAX_LINES]
    strongest = strongest[flat[strongest] > 0.01]
    head, query, key = np.unravel_index(strongest, weights.shape)
    steps = np.minimum((flat[strongest] * len(LINE_STEPS)).astype(int), len(LINE_STEPS) - 1)
    for place, number in enumerate(heads):
        for step, opacity in enumerate(LINE_STEPS):
            chosen = (head == place) & (steps == step)
            if chosen.any():
                figure.add_trace(_line_bundle(query[chosen], key[chosen], number, opacity))
    for x, labels, anchor in ((0.0, q_labels, "right"), (1.0, k_labels, "left")):
        figure.add_trace(_token_column(x, labels, f"middle {'left' if anchor == 'right' else 'right'}"))
    _layout(figure, title, height=max(320, 22 * max(len(q_labels), len(k_labels)) + 90))
    figure.update_xaxes(visible=False, range=[-0.6, 1.6])
    figure.update_yaxes(visible=False, autorange="reversed")
    return figure


def _line_bundle(query: NDArray[np.intp], key: NDArray[np.intp], head: int, opacity: float) -> go.Scatter:
    gaps = np.full(len(query), np.nan, dtype=np.float32)
    x = np.stack([np.zeros_like(gaps), np.ones_like(gaps), gaps], axis=1).ravel()
    y = np.stack([query, key, gaps], axis=1).astype(np.float32).ravel()
    line = {"color": theme.head_colour(head), "width": 0.8 + 3 * opacity}
    return go.Scatter(x=x, y=y, mode="lines", line=line, opacity=opacity, hoverinfo="skip", showlegend=False)


def _token_column(x: float, labels: Sequence[str], position: str) -> go.Scatter:
    places = np.arange(len(labels), dtype=np.float32)
    text = [plain(label) for label in labels]
    return go.Scatter(
        x=np.full_like(places, x),
        y=places,
        text=text,
        mode="text",
        textposition=position,
        hoverinfo="skip",
        showlegend=False,
    )


def similarity_map(matrix: NDArray[np.float32], order: Sequence[int], title: str) -> go.Figure:
    """Draw how alike heads are, alike ones side by side; (H, H), 0 disjoint to 1 identical."""
    labels = [str(head) for head in order]
    ordered = np.ascontiguousarray(matrix[np.ix_(order, order)])
    heatmap = go.Heatmap(
        z=ordered,
        zmin=0.0,
        zmax=1.0,
        colorscale=theme.SEQUENTIAL,
        colorbar=_colour_bar("1 - JS divergence (bits)"),
        hovertemplate="heads %{y} and %{x}<br>similarity %{z:.4f}<extra></extra>",
    )
    figure = go.Figure(heatmap)
    _layout(figure, title, height=380)
    places = list(range(len(labels)))
    figure.update_xaxes(title="head", tickvals=places, ticktext=labels, constrain="domain")
    figure.update_yaxes(
        title="head", tickvals=places, ticktext=labels, autorange="reversed", scaleanchor="x", constrain="domain"
    )
    return figure


def _colour_bar(title: str) -> dict[str, Any]:
    return {"thickness": 10, "nticks": 5, "outlinewidth": 0, "title": {"text": title, "side": "right"}}


def _layout(figure: go.Figure, title: str, height: int) -> None:
    figure.update_layout(
        template="none",
        font={"color": theme.ink(), "family": "Source Sans, sans-serif", "size": 12},
        title={"text": title, "font": {"size": 14}, "x": 0.01},
        height=height,
        margin={"l": 80, "r": 8, "t": 100, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(128,128,128,0.14)",
        modebar={"remove": ["select2d", "lasso2d", "autoScale2d"]},
    )
