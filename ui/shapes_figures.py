"""The pictures of page Shapes: the flow of tensors as boxes and arrows, and the heads in which elements land."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mha_core.lenses.trace import Step, Trace
from ui import theme
from ui.figure_style import Layout, layout

BRANCHES = {"q": theme.HEAD_COLOURS[0], "k": theme.HEAD_COLOURS[5], "v": theme.HEAD_COLOURS[2]}
PLAIN, FAILED = "#8a8f98", "#D55E00"
MOST_CELLS = 128  # of a side of the index map


def spelled(shape: Sequence[object]) -> str:
    """Write a shape in parentheses."""
    return "(" + ", ".join(map(str, shape)) + ")"


def flow(trace: Trace, chosen: str) -> str:
    """Write the flow as a graph in the DOT language: a box per step, an arrow per input with its shape beside it.

    Args:
        chosen: name of the step that is filled.
    """
    ink = theme.ink()
    lines = [
        "digraph {",
        'graph [bgcolor="transparent", rankdir=TB, nodesep=0.25, ranksep=0.3, margin=0, ordering=out]',
        f'node [shape=box, style="rounded", fontname="sans-serif", fontsize=11, fontcolor="{ink}", margin="0.1,0.05"]',
        f'edge [fontname="sans-serif", fontsize=9, fontcolor="{ink}", color="{PLAIN}", arrowsize=0.6]',
    ]
    by_name = {step.name: step for step in trace.steps}
    for step in trace.steps:
        colour = BRANCHES.get(step.name.split("_")[0], PLAIN)
        filled = f', style="rounded,filled", fillcolor="{colour}40", penwidth=2.5' if step.name == chosen else ""
        lines.append(f'"{step.name}" [label="{step.name}\\n{_wrapped(step.operation)}", color="{colour}"{filled}]')
        lines += [f'"{source}" -> "{step.name}" [label=" {_label(by_name[source])}"]' for source in step.inputs]
    if trace.failure is not None:
        lines.append(
            f'"failure" [label="{trace.failure.step}\\n{_wrapped(trace.failure.operation)}\\nfails here", '
            f'color="{FAILED}", fontcolor="{FAILED}", style="rounded,dashed", penwidth=2.5]'
        )
        last = trace.steps[-1] if trace.steps else None
        lines += [f'"{last.name}" -> "failure" [label=" {_label(last)}", color="{FAILED}"]'] if last else []
    return "\n".join([*lines, "}"])


def _wrapped(operation: str) -> str:
    """Break a long operation, so that boxes stay narrow and the text large."""
    return "\\n".join(textwrap.wrap(operation, 25))


def _label(step: Step) -> str:
    return f"{spelled(step.symbolic)}\\n {' x '.join(map(str, step.shape))}"


def head_places(heads: NDArray[np.intp], places: tuple[int, int], title: str, note: str) -> go.Figure:
    """Draw in which head each element of one sequence lands, (S, E), and mark one element.

    Args:
        heads: head of each element. places: (s, e) of the marked one. note: what its hover says.
    """
    length, width = heads.shape
    token_step, channel_step = -(-length // MOST_CELLS), -(-width // MOST_CELLS)
    cells = heads[::token_step, ::channel_step].astype(np.int16)
    count = int(heads.max()) + 1
    heatmap = {
        "type": "heatmap",
        "z": cells,
        "x": np.arange(0, width, channel_step),
        "y": np.arange(0, length, token_step),
        "zmin": -0.5,
        "zmax": count - 0.5,
        "colorscale": _steps(count),
        "showscale": False,
        "hovertemplate": "token %{y}, channel %{x}<br>lands in head %{z}<extra></extra>",
    }
    mark = {
        "type": "scatter",
        "mode": "markers",
        "x": [places[1]],
        "y": [places[0]],
        "marker": {"symbol": "x-thin", "size": 13, "line": {"width": 3, "color": "#000000"}},
        "hovertemplate": note + "<extra></extra>",
        "showlegend": False,
    }
    halo = mark | {
        "marker": {"symbol": "x-thin", "size": 15, "line": {"width": 6, "color": "#ffffff"}},
        "hoverinfo": "skip",
    }
    axes: Layout = {
        "xaxis": {"title": {"text": "channel e"}, "showgrid": False, "zeroline": False},
        "yaxis": {"title": {"text": "token s"}, "autorange": "reversed", "showgrid": False, "zeroline": False},
        "margin": {"l": 55, "r": 8, "t": 40, "b": 45},
    }
    return go.Figure({"data": [heatmap, halo, mark], "layout": layout(title, 300) | axes})


def _steps(count: int) -> list[list[object]]:
    """One colour per head, without a blend between neighbours."""
    scale: list[list[object]] = []
    for head in range(count):
        scale += [[head / count, theme.head_colour(head)], [(head + 1) / count, theme.head_colour(head)]]
    return scale
