"""Figures and texts by themselves: labels that are true of pooled cells, ranges, escapes, typed arrays, bounds.

Numbers are compared with what was put in; what a browser would make of a text is left to the browser tests.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from mha_core import Experiment, RandomSource, run
from mha_core.config import AttentionConfig
from ui import compute, figure_style, figures, panels, theme

MARKUP = "a<b>&amp;</b> \"q\" 'p' <script>alert(1)</script>"


def spec(figure: go.Figure) -> dict[str, Any]:
    """The figure as it is sent."""
    sent: dict[str, Any] = json.loads(figure.to_json())
    return sent


@pytest.mark.parametrize("block", [1, 2, 3, 7, 20])
def test_block_labels_count_their_tokens(block: int) -> None:
    tokens = [f"w{i}" for i in range(17)]
    labels = figures.block_labels(tokens, block)
    assert len(labels) == -(-17 // block)
    for place, label in enumerate(labels):
        first, *more = label.split(" +")
        assert first == tokens[place * block]
        following = len(tokens[place * block : (place + 1) * block]) - 1
        assert (int(more[0]) if more else 0) == following


def test_long_labels_are_cut() -> None:
    (label,) = figures.block_labels(["x" * 1000], 1)
    assert len(label) < 40
    assert label[:10] == "x" * 10


@pytest.mark.parametrize("text", [MARKUP, "plain", "&lt;", "", "<", "a > b & c"])
def test_plain_for_plotly(text: str) -> None:
    escaped = figure_style.plain(text)
    assert "<" not in escaped
    assert ">" not in escaped
    assert html.unescape(escaped) == text


@pytest.mark.parametrize(
    "text", [MARKUP, "![i](u)", "# h", "1. x", "- x", "a_b_c **d**", "$x$ :red[y] ~s~ `c` |", "a\\b"]
)
def test_plain_for_markdown(text: str) -> None:
    escaped = panels.plain(text)
    assert re.sub(r"\\(.)", r"\1", escaped) == text  # nothing is lost
    bare = re.sub(r"\\.", "", escaped)
    assert not re.search(r"[\\`*_{}\[\]()#+!|<>~$:&-]", bare)


def test_ranges() -> None:
    values = np.array([[0.2, np.nan], [-3.0, 1.0]], dtype=np.float32)
    assert figures.colour_range("weights", values) == (0, 1)
    assert figures.colour_range("scores", values) == figures.colour_range("masked", values) == (-3, 3)
    assert figures.own_range(values) == (-3, 1)
    for ends in (
        figures.own_range(np.full((2, 2), np.nan, dtype=np.float32)),
        figures.colour_range("scores", np.full((2, 2), np.inf, dtype=np.float32)),
    ):
        assert np.isfinite(ends).all()
        assert ends[0] < ends[1]


def test_arrays_travel_as_bytes() -> None:
    values = np.random.default_rng(0).random((7, 11)).astype(np.float32)
    square = values[:, :7] / 2
    sent = [
        spec(figures.query_bars(values[0], ["k"] * 11, 0, "T")),
        spec(figures.token_lines(values[None], [0], ["q"] * 7, ["k"] * 11, "T")),
        spec(figures.similarity_map(square, list(range(7)), "T")),
    ]
    for figure in sent:
        for trace in figure["data"]:
            for name in {"x", "y", "z", "customdata"} & set(trace):
                assert trace[name] is None or "bdata" in trace[name], (trace["type"], name)


def test_lines_keep_the_strongest() -> None:
    weights = np.random.default_rng(1).random((2, 40, 40)).astype(np.float32)
    figure = figures.token_lines(weights, [0, 1], ["q"] * 40, ["k"] * 40, "T")
    bundles = [trace for trace in figure.data if trace.mode == "lines"]
    drawn = sum(len(trace.y) // 3 for trace in bundles)
    assert drawn == figures.MAX_LINES
    quietest = np.sort(weights.ravel())[-drawn]
    for trace in bundles:
        head = theme.HEAD_COLOURS.index(trace.line.color)
        assert all(weights[head, int(q), int(k)] >= quietest for q, k in zip(trace.y[::3], trace.y[1::3], strict=True))


def test_lines_without_a_number() -> None:
    weights = np.full((1, 3, 3), np.nan, dtype=np.float32)
    figure = figures.token_lines(weights, [0], ["q"] * 3, ["k"] * 3, "T")
    assert [trace.mode for trace in figure.data] == ["text", "text"]


def test_similarity_is_put_in_order() -> None:
    matrix = np.arange(9, dtype=np.float32).reshape(3, 3)
    figure = figures.similarity_map(matrix, [2, 0, 1], "T")
    assert figure.data[0].z.tolist() == [[8, 6, 7], [2, 0, 1], [5, 3, 4]]
    assert list(figure.layout.xaxis.ticktext) == ["2", "0", "1"]


def test_colours_are_distinct_and_in_range() -> None:
    assert len(set(theme.HEAD_COLOURS)) == len(theme.HEAD_COLOURS)
    for table in (theme.SEQUENTIAL_TABLE, theme.DIVERGING_TABLE):
        assert table.shape == (256, 3)
        assert table.dtype == np.uint8
        assert len(np.unique(table, axis=0)) > 200
    light = theme.SEQUENTIAL_TABLE.astype(float) @ [0.299, 0.587, 0.114]
    assert np.all(np.diff(light) > -1.5)  # readable without colour: brightness only grows


def test_cached_answers_are_those_of_the_core() -> None:
    experiment = Experiment(RandomSource(2, 5, 7), AttentionConfig(24, 4), seed=77)
    result = run(experiment)
    assert np.array_equal(compute.run_experiment(experiment).weights.numpy(), result.weights.numpy())
    rows = compute.query_rows(experiment, 1, (0, 3), "mean")
    assert np.allclose(rows, result.weights[1, :, [0, 3]].numpy().mean(1), atol=1e-7)
    assert np.allclose(compute.query_rows(experiment, 1, (0, 3), "sum"), rows * 2, atol=1e-6)
    other = Experiment(RandomSource(2, 5, 7), AttentionConfig(24, 4), seed=78)
    assert not np.array_equal(compute.run_experiment(other).weights.numpy(), result.weights.numpy())
    large = compute.large_map(experiment, 1, "weights", 2, "max")
    assert np.array_equal(large.values, result.weights[1, 2].numpy())
