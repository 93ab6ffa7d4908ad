"""The figures of page Cost: bars by step, growth with the length, the roofline, shares of work and time.

Values travel as typed arrays, never as lists; looks come from figure_style.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mha_core.lenses.cost_growth import Crossing, Growth
from mha_core.lenses.roofline import Machine, StepTime
from ui import theme
from ui.figure_style import Layout, layout, value_axis

BLUE, ORANGE, GREEN, PINK = theme.HEAD_COLOURS[:4]
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0.01, "yanchor": "bottom"}
MARGIN = {"l": 8, "r": 12, "t": 40, "b": 48}
BELOW = 40  # pixels for the legend
LOG_MARGIN = {"l": 64, "r": 12, "t": 40, "b": 48 + BELOW}
PALE_BLUE = "rgba(0,114,178,0.35)"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star", "pentagon")
ROOF_INTENSITIES = (0.05, 2000.0)  # FLOP per byte, the ends of the roofline's axis


def prefix(value: float) -> tuple[float, str]:
    """Give the decimal prefix that suits a number: 23.3e6 -> (1e6, "M")."""
    return next((pair for pair in PREFIXES if value >= pair[0]), (1.0, ""))


def spell(value: float, unit: str) -> str:
    """Write a number with four digits, a prefix and its unit: 23316480 -> "23.32 MFLOP"."""
    factor, letter = prefix(value)
    return f"{value / factor:.4g} {joined(letter, unit)}"


def joined(letter: str, unit: str) -> str:
    """Put a prefix before a unit, or apart before a word: "MFLOP", "k operations"."""
    return f"{letter} {unit}".strip() if unit.islower() else f"{letter}{unit}"


@dataclass(frozen=True)
class StepBars:
    """Bars of one kind of work: a name, and for each step what a dense kernel does and what is needed."""

    title: str
    unit: str
    steps: tuple[str, ...]
    dense: tuple[float, ...]
    needed: tuple[float, ...]


def step_bars(bars: StepBars, *, is_masked: bool) -> go.Figure:
    """Draw one bar per step; under a mask the needed part stands inside what a dense kernel does."""
    factor, letter = prefix(max(bars.dense, default=0))
    traces = [_bar("a dense kernel does" if is_masked else "all pairs", bars.steps, bars.dense, factor, BLUE, 0.8)]
    if is_masked:
        traces[0]["marker"]["color"] = PALE_BLUE
        traces.append(_bar("the mask needs", bars.steps, bars.needed, factor, BLUE, 0.45))
    unit = joined(letter, bars.unit)
    for trace in traces:
        trace["hovertemplate"] = f"%{{y}}<br>%{{x:.6g}} {unit}<extra>{trace['name']}</extra>"
    axes = {
        "xaxis": value_axis(unit),
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
        "barmode": "overlay",
        "showlegend": is_masked,
        "legend": LEGEND,
        "margin": MARGIN | {"b": MARGIN["b"] + BELOW * is_masked},
    }
    return _figure(traces, bars.title, 100 + 32 * len(bars.steps) + BELOW * is_masked, axes)


def _bar(
    name: str, steps: Sequence[str], values: Sequence[float], factor: float, colour: str, width: float
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(steps),
        "x": np.array(values, dtype=np.float64) / factor,
        "width": width,
        "marker": {"color": colour, "line": {"width": 0}},
    }


def growth(rows: Sequence[Growth], cross: Crossing, lengths: tuple[int, int], unit: str, factor: float) -> go.Figure:
    """Draw projections and attention against the length, both axes logarithmic.

    Args:
        lengths: the experiment's own Sq and Sk, marked. factor: of the unit, 1 for FLOP and 1/2 for MAC.
    """
    length = np.array([row.length for row in rows], dtype=np.float64)
    lines = [
        ("projections", [row.projection_flops for row in rows], ORANGE, "solid"),
        ("attention, full square", [row.attention_flops for row in rows], BLUE, "solid"),
    ]
    needed = [row.needed_attention_flops for row in rows]
    if all(value is not None for value in needed) and needed != lines[1][1]:
        lines.append(("attention, mask needs", [value or 0 for value in needed], BLUE, "dot"))
    traces = [
        _line(name, length, np.array(values) * factor, colour, dash, unit) for name, values, colour, dash in lines
    ]
    crossed = cross.per_token_flops * cross.full_square * factor
    traces.append(
        _mark("crossing", [cross.full_square], [crossed], f"S* = {cross.full_square:,.5g}", ORANGE, "bottom right")
    )
    axes = {
        "xaxis": value_axis("length S, tokens", log=True),
        "yaxis": value_axis(f"{unit}, forward matmul", log=True),
        "shapes": _own_lengths(*lengths),
        "legend": LEGEND,
        "margin": LOG_MARGIN,
    }
    return _figure(traces, "Growth with the length, one sequence", 420, axes)


def _own_lengths(q_len: int, k_len: int) -> list[dict[str, Any]]:
    """Mark the experiment's own lengths, the shorter one with its label to the left."""
    if q_len == k_len:
        return [_vertical(q_len, "S here", "left")]
    marks = sorted([(q_len, "Sq"), (k_len, "Sk")])
    return [_vertical(at, name, side) for (at, name), side in zip(marks, ("right", "left"), strict=True)]


def _vertical(at: int, name: str, anchor: str) -> dict[str, Any]:
    dashed = {"color": theme.ink(), "width": 1.5, "dash": "dash"}
    label = {"text": f"{name} = {at:,}", "textposition": "end", "textangle": 0, "xanchor": anchor, "yanchor": "top"}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": dashed, "label": label}


def _line(
    name: str, x: NDArray[np.float64], y: NDArray[np.float64], colour: str, dash: str, unit: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y.astype(np.float64),
        "line": {"color": colour, "width": 2, "dash": dash},
        "hovertemplate": f"S %{{x}}<br>%{{y:.4s}}{unit}<extra>{name}</extra>",
    }


def _mark(name: str, x: Sequence[float], y: Sequence[float], text: str, colour: str, place: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": np.array(x, dtype=np.float64),
        "y": np.array(y, dtype=np.float64),
        "text": [text],
        "textposition": place,
        "marker": {"color": colour, "size": 10, "line": {"color": theme.ink(), "width": 1.5}},
        "cliponaxis": False,
        "showlegend": False,
        "hovertemplate": f"%{{x:.5g}}, %{{y:.4s}}<extra>{name}</extra>",
    }


def roofline(machine: Machine, points: Sequence[tuple[str, float, float]], *, is_measured: bool) -> go.Figure:
    """Draw the roof and each step under it, both axes logarithmic.

    Args:
        points: name, intensity in FLOP per byte, and rate in GFLOP/s of each step.
        is_measured: the rates are measured ones, not what the roof allows.
    """
    low, high = ROOF_INTENSITIES
    grid = np.array([low, machine.ridge, max(high, *(2 * x for x in (machine.ridge, *(at for _, at, _ in points))))])
    room = 30 + 20 * (len(points) // 2 + 1)  # pixels for a legend of two in a row, the roof among them
    roof = _line("roof", grid, np.array([machine.roof_gflops(x) for x in grid]), ORANGE, "solid", " GFLOP/s")
    ridge = f"ridge {machine.ridge:.3g}"
    traces = [
        roof | {"hovertemplate": "%{x:.3g} FLOP/byte<br>%{y:.4g} GFLOP/s<extra>roof</extra>"},
        _mark("ridge", [machine.ridge], [machine.matmul_gflops], ridge, ORANGE, "top center"),
        *(_point(place, *point) for place, point in enumerate(points)),
    ]
    axes = {
        "xaxis": value_axis("arithmetic intensity, FLOP per byte", log=True),
        "yaxis": value_axis("GFLOP/s", log=True),
        "legend": LEGEND,
        "margin": LOG_MARGIN | {"b": 48 + room},
    }
    how = "each step as measured" if is_measured else "each step where the roof allows"
    return _figure(traces, f"Roofline of this machine, {how}", 360 + room, axes)


def _point(place: int, step: str, intensity: float, gflops: float) -> dict[str, Any]:
    """One step, told from the others by colour and form: their labels would lie on one another."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": step,
        "x": np.array([intensity]),
        "y": np.array([gflops]),
        "marker": {
            "color": theme.head_colour(place),
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "size": 11,
            "line": {"color": theme.ink(), "width": 1},
        },
        "hovertemplate": f"%{{x:.3g}} FLOP/byte<br>%{{y:.4g}} GFLOP/s<extra>{step}</extra>",
    }


def shares(times: Sequence[StepTime]) -> go.Figure:
    """Draw each step's share of the FLOPs beside its share of the measured time."""
    steps = [row.step for row in times]
    traces = [
        _bar("share of FLOPs", steps, [row.flop_share for row in times], 0.01, ORANGE, 0.38) | {"offset": -0.4},
        _bar("share of time", steps, [row.time_share for row in times], 0.01, BLUE, 0.38) | {"offset": 0.0},
    ]
    for trace in traces:
        trace["hovertemplate"] = f"%{{y}}<br>%{{x:.3g}} %<extra>{trace['name']}</extra>"
    axes = {
        "xaxis": value_axis("share, %"),
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
        "legend": LEGEND,
        "margin": MARGIN | {"b": MARGIN["b"] + BELOW},
    }
    return _figure(traces, "Work and time by step", 150 + 34 * len(steps), axes)


def _figure(traces: Sequence[dict[str, Any]], title: str, height: int, axes: Layout) -> go.Figure:
    return go.Figure({"data": list(traces), "layout": layout(title, height) | axes})
