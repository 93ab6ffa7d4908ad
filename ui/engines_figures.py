"""The figures of page Engines: time and memory of every variant, as bars at one length or lines over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mha_core.lenses.bench_variants import Variant
from mha_core.lenses.benchmark import Measurement
from ui import theme
from ui.figure_style import Layout, layout, value_axis

BYTES_PER_MIB = 2**20
# At the lower edge, where it may take the lines it needs on a phone.
LEGEND: Layout = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "traceorder": "reversed"}
LINE_COLOURS = {"explicit": 0, "chunked": 1, "sdpa": 2, "nn.MHA": 3, "raw SDPA": 7, "one head": 5}


@dataclass(frozen=True)
class Quantity:
    """What is drawn: its name, unit and format of a number."""

    name: str
    unit: str
    digits: str

    def of(self, row: Measurement) -> tuple[float, float, float]:
        """Give value and both ends of its spread; NaN where it was not measured."""
        if self.unit == "ms":
            timing = row.timing
            return (timing.median_ms, timing.low_ms, timing.high_ms) if timing else (np.nan, np.nan, np.nan)
        size = np.nan if row.peak_extra_bytes is None else row.peak_extra_bytes / BYTES_PER_MIB
        return size, size, size


TIME = Quantity("time", "ms", ".3f")
MEMORY = Quantity("peak extra memory", "MiB", ".2f")


def label(variant: Variant) -> str:
    """Name a variant in the little room of a figure."""
    return variant.name.replace("nn.MultiheadAttention", "nn.MHA").replace("projections around ", "")


def _errors(values: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Quartiles as whiskers."""
    middle, low, high = np.array(values, dtype=np.float32).T
    bars = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
    return bars | {"color": theme.ink(), "thickness": 1, "width": 2}


def _hover(quantity: Quantity, axis: str) -> str:
    spread = " (%{customdata[0]:.3f} to %{customdata[1]:.3f})" if quantity.unit == "ms" else ""
    return f"%{{text}}<br>%{{{axis}:{quantity.digits}}} {quantity.unit}{spread}<extra></extra>"


def bars(rows: Sequence[Measurement], quantity: Quantity, title: str) -> go.Figure:
    """Draw one length and pass: a bar per variant, a colour per number format."""
    names = list(dict.fromkeys(label(row.variant) for row in rows))[::-1]
    dtypes = list(dict.fromkeys(row.variant.dtype for row in rows))
    traces = []
    for number, dtype in reversed(list(enumerate(dtypes))):  # plotly draws the first of a group at its foot
        chosen = [row for row in rows if row.variant.dtype == dtype]
        values = [quantity.of(row) for row in chosen]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": dtype,
                "y": [label(row.variant) for row in chosen],
                "x": np.array([value[0] for value in values], dtype=np.float32),
                "customdata": np.array([value[1:] for value in values], dtype=np.float32),
                "text": [f"{row.variant.name}, {dtype}" for row in chosen],
                "textposition": "none",
                "error_x": _errors(values) if quantity.unit == "ms" else None,
                "marker": {"color": theme.head_colour(number), "line": {"width": 0}},
                "hovertemplate": _hover(quantity, "x"),
            }
        )
    axes = {
        "xaxis": value_axis(f"{quantity.name}, {quantity.unit}"),
        "yaxis": {"categoryorder": "array", "categoryarray": names, "automargin": True},
        "legend": LEGEND,
        "bargap": 0.25,
        "showlegend": len(dtypes) > 1,
        "margin": {"l": 8, "r": 8, "t": 40, "b": 100},
    }
    height = 140 + len(names) * (10 + 9 * len(dtypes))
    return go.Figure({"data": traces, "layout": layout(title, height) | axes})


def lines(rows: Sequence[Measurement], quantity: Quantity, title: str) -> go.Figure:
    """Draw several lengths of one number format and pass: a line per variant over the length, both axes log."""
    lengths = sorted({row.q_len for row in rows})
    traces: list[dict[str, Any]] = []
    for variant in dict.fromkeys(row.variant for row in rows):
        chosen = sorted((row for row in rows if row.variant == variant), key=lambda row: row.q_len)
        values = [quantity.of(row) for row in chosen]
        family = _family(variant)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": family,
                "legendgroup": family,
                "showlegend": all(trace["name"] != family for trace in traces),
                "x": np.array([row.q_len for row in chosen], dtype=np.float32),
                "y": np.array([value[0] for value in values], dtype=np.float32),
                "customdata": np.array([value[1:] for value in values], dtype=np.float32),
                "text": [f"{variant.name}, {row.q_len:,} tokens" for row in chosen],
                "error_y": _errors(values) if quantity.unit == "ms" else None,
                "hovertemplate": _hover(quantity, "y"),
                **_line_look(variant, family),
            }
        )
    places = {"tickvals": lengths, "ticktext": [f"{length:,}" for length in lengths]}
    axes = {
        "xaxis": value_axis("Sq, tokens", log=True) | places,
        "yaxis": value_axis(f"{quantity.name}, {quantity.unit}", log=True) | {"dtick": "D2"},
        "legend": LEGEND | {"traceorder": "normal", "entrywidth": 85},
        "margin": {"l": 60, "r": 8, "t": 40, "b": 120},
    }
    return go.Figure({"data": traces, "layout": layout(title, 460) | axes})


def _family(variant: Variant) -> str:
    """What a line is coloured by: its kernel, or whose code it is."""
    if variant.kind == "engine":
        return "one head" if variant.one_head else variant.kernel
    return label(variant).split(",")[0]


def _line_look(variant: Variant, family: str) -> dict[str, Any]:
    """Dashes for a fused projection, and for torch's module without weights; crosses for einops."""
    is_plain = variant.need_weights if variant.kind == "nn.MultiheadAttention" else variant.projection == "separate"
    line = {"color": theme.head_colour(LINE_COLOURS[family]), "dash": "solid" if is_plain else "dash", "width": 1.5}
    return {"line": line, "marker": {"symbol": "x" if variant.head_split == "einops" else "circle", "size": 6}}
