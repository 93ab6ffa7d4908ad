"""The figures of one backward pass and of the schemes: bars with verdicts, shares of the heads, schemes by parameter.

A verdict is a colour and a word, never a colour alone. Values travel as typed arrays; looks come from figure_style.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mha_core.lenses.grad_schemes import SchemeRow
from mha_core.lenses.gradients import Flow
from mha_core.lenses.verdicts import VERDICTS, Judged
from ui import theme
from ui.figure_style import Layout, colour_bar, layout, value_axis

COLOURS = {
    "healthy": "#009E73",
    "dead": "#7F7F7F",
    "vanishing": "#56B4E9",
    "exploding": "#D55E00",
    "by design": "#CC79A7",
}
# The order in which a backward pass goes through them; (kind of flow, its name).
BACKWARDS = (
    ("tensor", "output"),
    ("weight", "out"),
    ("bias", "out_bias"),
    ("tensor", "context"),
    ("tensor", "v"),
    ("weight", "v"),
    ("bias", "v_bias"),
    ("tensor", "weights"),
    ("tensor", "scores"),
    ("tensor", "q"),
    ("weight", "q"),
    ("bias", "q_bias"),
    ("tensor", "k"),
    ("weight", "k"),
    ("bias", "k_bias"),
)
HEAD_ROWS = ("scores", "weights", "context")
MATRICES = ("q", "k", "v", "out")
ROOM_DECADES = 3.0  # of the axis, right of the longest bar, for its words
WRITTEN_HEADS = 8  # up to which a cell has room for its number
LABELLED_HEADS = 16
DECADES_SHOWN = 4.0  # norm over Xavier's norm, as powers of ten, where the colours end
FIXED = {"fixedrange": True}


def label(flow: Flow) -> str:
    """Name a gradient as it is written: dL/dWq, dL/dbq, dL/dscores."""
    letter = {"weight": "W", "bias": "b", "tensor": ""}[flow.kind]
    name = "y" if flow.name == "output" else flow.name.removesuffix("_bias")
    return f"dL/d{letter}{name}"


@dataclass(frozen=True)
class _Bar:
    label: str
    norm: float
    verdict: str
    words: str


def _bars(result: Judged) -> list[_Bar]:
    """One bar per gradient, in the order of the backward pass."""
    bars = []
    for kind, name in BACKWARDS:
        flows = result.found.tensor if kind == "tensor" else result.found.parameter
        verdicts = result.tensors if kind == "tensor" else result.parameters
        if name in flows:
            norm, verdict = flows[name].norm, verdicts[name].kind
            bars.append(_Bar(label(flows[name]), norm, verdict, f" {norm:.4g} {verdict}"))
    return bars


def norms(result: Judged, title: str) -> go.Figure:
    """Draw the norm of every gradient on a logarithmic axis, from the loss downwards, with its verdict."""
    bars = _bars(result)
    finite = [bar.norm for bar in bars if bar.norm > 0 and math.isfinite(bar.norm)] or [1.0]
    low, high = math.floor(math.log10(min(finite))) - 0.5, math.log10(max(finite))
    room = max(ROOM_DECADES, 0.75 * (high - low))
    traces = []
    for verdict in VERDICTS:
        chosen = [bar for bar in bars if bar.verdict == verdict]
        if chosen:
            traces.append(_bar_trace(verdict, chosen))
    lost = [bar for bar in bars if not (bar.norm > 0 and math.isfinite(bar.norm))]
    traces.append(
        {
            "type": "scatter",
            "mode": "text",
            "x": np.full(len(lost), 10.0**low),
            "y": [bar.label for bar in lost],
            "text": [bar.words for bar in lost],
            "textposition": "middle right",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    axes = {
        "xaxis": value_axis("L2 norm of the gradient", log=True) | {"range": [low, high + room], "nticks": 6} | FIXED,
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": [bar.label for bar in bars][::-1],
            "automargin": True,
            "showgrid": False,
        }
        | FIXED,
        "showlegend": False,
        "bargap": 0.3,
        "margin": {"l": 8, "r": 8, "t": 40, "b": 48},
    }
    return go.Figure({"data": traces, "layout": layout(title, 110 + 26 * len(bars)) | axes})


def _bar_trace(verdict: str, bars: Sequence[_Bar]) -> dict[str, Any]:
    drawn = np.array([bar.norm if bar.norm > 0 and math.isfinite(bar.norm) else np.nan for bar in bars])
    return {
        "type": "bar",
        "orientation": "h",
        "name": verdict,
        "y": [bar.label for bar in bars],
        "x": drawn,
        "text": [bar.words if math.isfinite(value) else "" for bar, value in zip(bars, drawn, strict=True)],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": COLOURS[verdict], "line": {"width": 0}},
        "hovertemplate": f"%{{y}}<br>norm %{{x:.6g}}<extra>{verdict}</extra>",
    }


def _shares(flow: Flow, heads: int) -> NDArray[np.float64]:
    """Norm of each query head; a shared key/value head stands for all heads of its group."""
    found = np.array([share.norm for share in flow.heads])
    return np.repeat(found, heads // len(found))


def head_shares(result: Judged, title: str) -> go.Figure:
    """Draw how the gradient is shared among the heads: each row over its own mean."""
    found = result.found
    flows = [found.parameter[name] for name in MATRICES]
    flows += [found.tensor[name] for name in HEAD_ROWS if name in found.tensor]
    heads = found.experiment.attention.num_heads
    exact = np.stack([_shares(flow, heads) for flow in flows])
    means = exact.mean(1, keepdims=True)
    relative = np.divide(exact, means, out=np.full_like(exact, np.nan), where=means > 0)
    heatmap = {
        "type": "heatmap",
        "z": relative,
        "customdata": exact,
        "x": np.arange(heads),
        "y": [label(flow) for flow in flows],
        "zmin": 0.0,
        "zmid": 1.0,
        "zmax": 2.0,
        "colorscale": theme.DIVERGING,
        "colorbar": colour_bar("times the row's mean"),
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}, head %{x}<br>norm %{customdata:.5g}<br>%{z:.3f} times the mean<extra></extra>",
    }
    if heads <= WRITTEN_HEADS:
        heatmap |= {"texttemplate": "%{z:.2f}", "textfont": {"size": 10, "color": "#3d4854"}}
    labels = [label(flow) for flow in flows]
    rows: Layout = {"type": "category", "categoryarray": labels, "tickvals": labels, "range": [len(flows) - 0.5, -0.5]}
    columns: Layout = {"title": {"text": "head"}, "zeroline": False, "range": [-0.5, heads - 0.5]}
    axes = {  # ranges of their own: without any gradient there is no cell to tell them
        "xaxis": columns | {"showgrid": False} | _head_ticks(heads) | FIXED,
        "yaxis": rows | {"automargin": True, "showgrid": False} | FIXED,
        "margin": {"l": 8, "r": 8, "t": 40, "b": 48},
    }
    return go.Figure({"data": [heatmap], "layout": layout(title, 110 + 34 * len(flows)) | axes})


def _head_ticks(heads: int) -> Layout:
    """Whole numbers of heads, as many as can be read."""
    step = -(-heads // LABELLED_HEADS)
    return {"tickmode": "linear", "tick0": 0, "dtick": step}


def schemes(rows: Sequence[SchemeRow], title: str) -> go.Figure:
    """Draw every scheme by matrix: norm over that under Xavier as a colour, the verdict as a word."""
    relative = np.array([[_decades(row, name) for name in MATRICES] for row in rows])
    words = [[row.verdicts[name].kind for name in MATRICES] for row in rows]
    bare = [(x, y) for y in range(len(rows)) for x in range(len(MATRICES)) if math.isnan(relative[y, x])]
    on_ground = {
        "type": "scatter",
        "mode": "text",
        "x": [f"W{MATRICES[x]}" for x, _ in bare],
        "y": [rows[y].scheme for _, y in bare],
        "text": [words[y][x] for x, y in bare],
        "textfont": {"size": 11, "color": theme.ink()},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    heatmap = {
        "type": "heatmap",
        "z": np.clip(relative, -DECADES_SHOWN, DECADES_SHOWN),
        "customdata": np.array([[row.norms[name] for name in MATRICES] for row in rows]),
        "x": [f"W{name}" for name in MATRICES],
        "y": [row.scheme for row in rows],
        "text": [
            ["" if math.isnan(z) else w for w, z in zip(*pair, strict=True)]
            for pair in zip(words, relative, strict=True)
        ],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "hoverongaps": False,
        "zmin": -DECADES_SHOWN,
        "zmax": DECADES_SHOWN,
        "colorscale": theme.DIVERGING,
        "colorbar": colour_bar("norm / Xavier's") | _decade_ticks(),
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{y}, %{x}<br>norm %{customdata:.5g}<extra></extra>",
    }
    axes = {
        "xaxis": {"side": "top", "showgrid": False} | FIXED,
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False} | FIXED,
        "margin": {"l": 8, "r": 8, "t": 70, "b": 8},
    }
    return go.Figure({"data": [heatmap, on_ground], "layout": layout(title, 100 + 34 * len(rows)) | axes})


def _decades(row: SchemeRow, name: str) -> float:
    """Powers of ten between a norm and Xavier's; NaN where one is zero or no number: the cell has no colour."""
    relative = row.verdicts[name].relative
    return math.log10(relative) if relative and math.isfinite(relative) else math.nan


def _decade_ticks() -> Layout:
    places = np.arange(-DECADES_SHOWN, DECADES_SHOWN + 1, 2)
    return {"tickvals": places, "ticktext": [f"10<sup>{place:.0f}</sup>" for place in places], "tickmode": "array"}
