"""Page 1 shows what the experiment computes: every picture is read back into numbers and compared with a recomputation.

The recomputation is `tests.lenses.reference`, head by head in float64, which knows neither the layer nor the page. The
large map must be the exact numbers; the head grid is 8-bit and must be within half a level of every cell.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from mha_core import Run, run
from tests.lenses.reference import entropy, pooled, reference, similarity
from tests.ui.page import ATTENTION, figures, grid, large_map, lower, open_page, set_widget, shown, texts, whole

STAGES, COLOURS = ("weights", "scores", "masked"), ("fixed", "head", "log")
SMALL = {"text": "one two three four five", "embed_dim": "24", "num_heads": "4"}
EXPERIMENTS: tuple[dict[str, str], ...] = (
    {},
    SMALL | {"mask": "causal"},
    SMALL | {"mask": "padding,causal", "text": "one two three\nfour five six seven eight", "sequence": "0"},
    SMALL | {"memory_text": "eins zwei drei", "mask": "local", "window": "1", "alignment": "top_left"},
    SMALL | {"positions": "rotary", "num_kv_heads": "2", "init_bias": "torch_default", "head": "3"},
    {"source": "random", "batch": "3", "q_len": "7", "k_len": "11", "embed_dim": "20", "num_heads": "5", "seed": "9"},
    SMALL | {"mask": "custom", "custom_mask": "11111/00000/10101/01010/11111", "fill": "-1e4"},
    SMALL | {"mask": "custom", "custom_mask": "11111/00000/10101/01010/11111", "fill": "-inf"},
)


def expected_map(result: Run, stage: str, sample: int) -> np.ndarray:
    """What a stage shows of one sequence, (H, Sq, Sk), NaN where hidden."""
    again = reference(result)
    if stage == "scores":
        return again.scores[sample]
    values = again.weights if stage == "weights" else again.scores
    return np.where(again.allowed, values, np.nan)[sample]


def check_pictures(page: AppTest, result: Run, stage: str = "weights", sample: int = 0, head: int = 0) -> None:
    """The large map and every tile of the grid against the recomputation."""
    expected = expected_map(result, stage, sample)
    z = large_map(page).values
    assert z.dtype == np.float32
    assert z.shape == expected.shape[1:]
    assert np.allclose(z, expected[head], atol=2e-5, rtol=1e-5, equal_nan=True)
    message = grid(page)
    assert message.levels.shape == expected.shape
    hidden = ~reference(result).allowed[sample] & (stage != "scores")
    assert np.array_equal(message.levels == 0, hidden)
    assert np.array_equal(message.levels == 1, np.isnan(expected) & ~hidden)
    off = np.abs(message.values() - expected)
    assert np.all(np.isnan(off) | (off <= message.tolerance()))
    assert np.array_equal(np.isnan(message.values()), np.isnan(expected))


@pytest.mark.parametrize("script", [ATTENTION, "app.py"])
def test_the_default_page(script: str) -> None:
    page = open_page(script)
    check_pictures(page, run(shown(page)))
    message = grid(page)
    words = ["The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", "tired"]
    assert message.header["q"] == message.header["k"] == words
    assert message.header["range"] == [0, 1]
    assert large_map(page).header["range"] == [0, 1]
    assert "11 tokens · 8 heads x 64" in texts(page)
    assert not page.warning
    assert not page.error
    assert "Attention" in page.subheader[0].value


@pytest.mark.parametrize("query", EXPERIMENTS, ids=str)
def test_pictures_are_the_experiment(query: dict[str, str]) -> None:
    page = open_page(**query)
    assert "could not be used" not in texts(page)
    result, head = run(shown(page)), int(query.get("head", 0))
    check_pictures(page, result, "weights", head=head)
    for stage in ("scores", "masked"):
        set_widget(page, "stage", stage)
        assert shown(page) == result.experiment
        check_pictures(page, result, stage, head=head)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("colour", COLOURS)
def test_colours_change_the_range_and_never_the_numbers(stage: str, colour: str) -> None:
    page = open_page(**SMALL, mask="causal", stage=stage, colour=colour, head="2")
    shown_map, result = large_map(page), run(shown(page))
    values = expected_map(result, stage, 0)[2]
    assert np.allclose(shown_map.values, values, atol=2e-5, equal_nan=True)
    assert shown_map.header["scale"] == ("log" if stage == "weights" and colour == "log" else "linear")
    if colour == "head":
        assert shown_map.header["range"] == pytest.approx([np.nanmin(values), np.nanmax(values)], abs=1e-5)
    elif stage == "weights" and colour == "fixed":
        assert shown_map.header["range"] == [0, 1]
    message = grid(page)
    off = np.abs(message.values() - expected_map(result, stage, 0))
    assert np.all(np.isnan(off) | (off <= message.tolerance()))


@pytest.mark.parametrize("stage", ["scores", "masked"])
def test_one_scale_for_all_is_one_scale(stage: str) -> None:
    """Scores, "same scale for all": the large map uses the grid's range, whichever head it shows."""
    ranges = []
    for head in ("0", "1"):
        page = open_page(**SMALL, stage=stage, colour="fixed", head=head)
        ends = large_map(page).header["range"]
        assert ends == pytest.approx(grid(page).header["range"])
        ranges.append(tuple(ends))
    assert ranges[0] == ranges[1]
    reach = np.nanmax(np.abs(expected_map(run(shown(page)), stage, 0)))
    assert ranges[0] == pytest.approx((-reach, reach), rel=1e-5)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_long_sequences_are_pooled(pooling: str) -> None:
    query = {"source": "random", "batch": "1", "q_len": "301", "embed_dim": "16", "num_heads": "2", "mask": "causal"}
    page = open_page(**query, pooling=pooling)
    result = run(shown(page))
    weights, allowed = result.weights[0].double().numpy(), np.tri(301, dtype=bool)[None].repeat(2, 0)
    values, hidden = pooled(weights, allowed, 128, pooling)
    z = large_map(page).values
    assert z.shape == values.shape[1:]
    assert np.array_equal(np.isnan(z), hidden[0])
    assert np.allclose(z, np.where(hidden, np.nan, values)[0], atol=1e-6, equal_nan=True)
    message = grid(page)
    side = max(message.levels.shape[1:])
    values, hidden = pooled(weights, allowed, side, pooling)
    assert np.array_equal(message.levels == 0, hidden)
    off = np.abs(message.values() - values)
    assert np.all(np.isnan(off) | (off <= message.tolerance()))
    assert "Pooled" in texts(page)


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_bars(combine: str) -> None:
    page = open_page(**SMALL, panel="bars", queries="1,3", combine=combine, head="2", seed="5")
    weights = reference(run(shown(page))).weights[0, :, [1, 3]]  # (2, H, Sk): numpy puts the list first
    joined = getattr(weights, combine)(0)
    bars = lower(page)["data"][0]
    assert bars["type"] == "bar"
    assert np.allclose(bars["y"], joined[2], atol=1e-5)
    assert np.allclose(grid(page).exact, joined, atol=1e-5)
    assert grid(page).header["chosen"] == [1, 3]
    set_widget(page, "queries", [0])
    single = reference(run(shown(whole(page)))).weights[0, :, 0]
    assert np.allclose(lower(page)["data"][0]["y"], single[2], atol=1e-5)
    assert np.allclose(grid(page).exact, single, atol=1e-5)


@pytest.mark.parametrize("heads", ["chosen", "all"])
def test_lines_are_the_strong_weights(heads: str) -> None:
    page = open_page(**SMALL, panel="lines", line_heads=heads, head="1")
    weights = reference(run(shown(page))).weights[0]
    weights = weights[[1]] if heads == "chosen" else weights
    bundles = [trace for trace in lower(page)["data"] if trace["mode"] == "lines"]
    drawn = [
        (int(start), int(end))
        for trace in bundles
        for start, end in zip(trace["y"][::3], trace["y"][1::3], strict=True)
    ]
    expected = [(int(q), int(k)) for _, q, k in zip(*np.nonzero(weights > 0.01), strict=True)]
    assert sorted(drawn) == sorted(expected)
    columns = [trace["text"] for trace in lower(page)["data"] if trace["mode"] == "text"]
    assert columns == [["one", "two", "three", "four", "five"]] * 2


def test_statistics() -> None:
    page = open_page(**SMALL, panel="statistics", mask="causal")
    weights = reference(run(shown(page))).weights[0]
    table = page.dataframe[0].value
    assert table["head"].tolist() == [0, 1, 2, 3]
    for head, row in table.iterrows():
        maps = weights[head]
        entropies = [entropy(r) for r in maps]
        assert row["entropy_nats"] == pytest.approx(np.mean(entropies), abs=1e-5)
        assert row["effective_keys"] == pytest.approx(np.mean(np.exp(entropies)), abs=1e-4)
        assert row["relative_entropy"] == pytest.approx(
            np.mean([entropies[i] / math.log(i + 1) for i in range(1, 5)]), abs=1e-5
        )
        assert row["diagonal"] == pytest.approx(np.mean(np.diag(maps)), abs=1e-5)
        assert row["previous"] == pytest.approx(np.diag(maps, -1).sum() / 5, abs=1e-5)
        assert row["first"] == pytest.approx(maps[:, 0].mean(), abs=1e-5)


def test_similarity() -> None:
    page = open_page(**SMALL, panel="similarity", seed="3")
    weights = reference(run(shown(page))).weights[0]
    figure = lower(page)
    order = [int(label) for label in figure["layout"]["xaxis"]["ticktext"]]
    assert sorted(order) == [0, 1, 2, 3]
    expected = [[similarity(weights[a], weights[b]) for b in order] for a in order]
    assert np.allclose(figure["data"][0]["z"], expected, atol=1e-5)
    assert (figure["data"][0]["zmin"], figure["data"][0]["zmax"]) == (0, 1)


def test_the_view_follows_its_widgets() -> None:
    page = open_page(text="one two three\nfour five", embed_dim="24", num_heads="4")
    result = run(shown(page))
    set_widget(page, "sequence", 1)
    check_pictures(page, result, "weights", sample=1)
    set_widget(page, "stage", "scores")
    check_pictures(page, result, "scores", sample=1)
    for panel, pictures in {
        "bars": 1,
        "lines": 1,
        "statistics": 0,
        "similarity": 1,
    }.items():  # the maps stay as they are
        set_widget(page, "panel", panel)
        assert len(figures(page)) == pictures, panel


def test_every_figure_says_what_it_shows() -> None:
    for panel in ("bars", "similarity"):
        for figure in figures(open_page(**SMALL, panel=panel)):
            layout: dict[str, Any] = figure["layout"]
            assert layout["title"]["text"]
            assert layout["xaxis"]["title"]["text"]
            assert layout["yaxis"]["title"]["text"]
