"""Page Cost: its figures, tables and sentences against numbers worked out here, from the sizes alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from mha_core.lenses import roofline
from tests.ui.page import figures, fine, link, open_page, press, set_widget, texts, whole
from ui import compute, jobs

COST = "pages/4_Cost.py"
RANDOM = {"source": "random", "batch": "2", "q_len": "7", "embed_dim": "30", "num_heads": "5"}
PROJECTION = 2 * 2 * 7 * 30 * 30
ATTENTION = 2 * 2 * 7 * 7 * 30
SCORES = 2 * 5 * 7 * 7
PRODUCTS = ("q projection", "k projection", "v projection", "q·kᵀ", "weights·v", "output projection")


def open_cost(**query: str) -> AppTest:
    return open_page(COST, **RANDOM | query)


def figure(page: AppTest, title: str) -> dict[str, Any]:
    (found,) = [one for one in figures(page) if one["layout"]["title"]["text"].startswith(title)]
    return found


def bars(page: AppTest, title: str) -> list[dict[str, float]]:
    """Each trace of a bar figure: step to value, in units of one."""
    found = figure(page, title)
    unit = found["layout"]["xaxis"]["title"]["text"]
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(unit[0] if unit not in ("FLOP", "MAC", "operations") else "", 1.0)
    return [
        {step: value * factor for step, value in zip(trace["y"], trace["x"], strict=True)} for trace in found["data"]
    ]


def table(page: AppTest, column: str) -> pd.DataFrame:
    """The one table that has a column."""
    (found,) = [element.value for element in page.dataframe if column in element.value.columns]
    return found


def column(frame: pd.DataFrame, name: str) -> dict[str, float]:
    return dict(zip(frame["step"], frame[name], strict=True))


def test_bars_keep_products_and_elementwise_work_apart() -> None:
    page = open_cost()
    (products,) = bars(page, "Matrix products")
    expected = [PROJECTION, PROJECTION, PROJECTION, ATTENTION, ATTENTION, PROJECTION]
    assert list(products) == list(PRODUCTS)
    np.testing.assert_allclose(list(products.values()), expected)
    (rest,) = bars(page, "Elementwise work")
    assert list(rest) == ["scale", "softmax", "bias"]
    np.testing.assert_allclose(list(rest.values()), [SCORES, 5 * SCORES, 2 * 7 * 4 * 30])


def test_a_mask_shows_what_is_needed_inside_what_is_done() -> None:
    page = open_cost(mask="causal")
    dense, needed = bars(page, "Matrix products")
    pairs = 28 / 49
    assert needed["q·kᵀ"] == pytest.approx(ATTENTION * pairs)
    assert dense["q·kᵀ"] == pytest.approx(ATTENTION)
    assert needed["q projection"] == dense["q projection"]
    _, needed = bars(page, "Elementwise work")
    assert needed["softmax"] == pytest.approx(5 * SCORES * pairs)
    assert needed["mask"] == pytest.approx(SCORES * pairs)
    assert "allows 56 of 98 (query, key) pairs, 57.1%" in texts(page)


def test_the_headline() -> None:
    page = open_cost()
    work = 4 * PROJECTION + 2 * ATTENTION
    said = texts(page).replace("\\", "")
    assert f"{(4 * 900 + 120) / 1e3:.4g} k parameters" in said
    assert f"forward {work / 1e3:.4g} kFLOP" in said
    assert f"attention {2 * ATTENTION / work:.1%}" in said
    assert "KV cache 1.9 MiB at 4,096 tokens" in said  # 2 x 2 x 4096 x 30 x 4 bytes


def test_the_unit_halves_products_and_nothing_else() -> None:
    page = set_widget(open_cost(), "cost_unit", "mac")
    page = whole(page)
    assert link(page)["cost_unit"] == "mac"
    (products,) = bars(page, "Matrix products")
    assert products["q projection"] == pytest.approx(PROJECTION / 2)
    (rest,) = bars(page, "Elementwise work")
    assert rest["softmax"] == pytest.approx(5 * SCORES)
    assert column(table(page, "formula"), "forward matmul, MAC")["q projection"] == PROJECTION / 2
    assert f"{(4 * PROJECTION + 2 * ATTENTION) / 2 / 1e3:.4g} kMAC" in texts(page).replace("\\", "")


def test_the_table_of_steps() -> None:
    frame = table(open_cost(mask="causal", cost_pass="both", cost_pairs="needed"), "formula")
    assert column(frame, "forward matmul, FLOP")["q·kᵀ"] == ATTENTION * 28 // 49
    assert column(frame, "backward matmul, FLOP")["q·kᵀ"] == 2 * ATTENTION * 28 // 49
    assert column(frame, "backward matmul, FLOP")["q projection"] == 2 * PROJECTION
    assert column(frame, "backward elementwise, operations")["softmax"] == 4 * SCORES * 28 // 49
    assert column(frame, "bytes")["softmax"] == 4 * SCORES
    assert column(frame, "formula")["q projection"] == "2·B·Sq·E·H·D"


def test_without_the_gradient_of_the_input() -> None:
    frame = table(open_cost(cost_pass="both", cost_input_gradient="false"), "formula")
    backward = column(frame, "backward matmul, FLOP")
    assert backward["q projection"] == PROJECTION
    assert backward["output projection"] == 2 * PROJECTION


def test_other_counts_each_with_a_sentence() -> None:
    (counts,) = [element.value for element in open_cost().table]
    work = 4 * PROJECTION + 2 * ATTENTION
    numbers = {name.replace("\\", ""): row for name, row in counts.iterrows()}

    def shown(name: str) -> str:
        return str(numbers[name]["forward, FLOP"]).replace("\\", "")

    assert shown("closed form") == f"{work:,}"
    assert shown("counter, explicit kernel") == f"{work:,}"
    assert shown("seed article, count_flops") == f"{work - ATTENTION:,}"
    assert shown("counter, fused kernel (SDPA)") == f"{4 * PROJECTION:,}"
    assert shown("counter, nn.MultiheadAttention, need_weights=True") == f"{work:,}"
    assert shown("counter, nn.MultiheadAttention, need_weights=False") == f"{4 * PROJECTION:,}"
    assert all(len(str(row["what it sees"])) > 20 for row in numbers.values())


def test_growth_marks_the_crossing_and_the_length() -> None:
    found = figure(open_cost(cost_unit="mac"), "Growth")
    lines = {trace["name"]: trace for trace in found["data"]}
    length = np.array(lines["projections"]["x"])
    np.testing.assert_allclose(lines["projections"]["y"], 4 * 900 * length)
    np.testing.assert_allclose(lines["attention, full square"]["y"], 2 * 30 * length**2)
    assert list(lines["crossing"]["x"]) == [60.0]
    np.testing.assert_allclose(lines["crossing"]["y"], [4 * 900 * 60])
    assert [shape["x0"] for shape in found["layout"]["shapes"]] == [7]
    assert "attention, mask needs" not in lines
    causal = {trace["name"]: trace for trace in figure(open_cost(mask="causal"), "Growth")["data"]}
    half = causal["attention, mask needs"]
    np.testing.assert_allclose(half["y"], 4 * 30 * length * (length + 1) / 2)


def test_sharing_heads_and_the_context() -> None:
    page = open_cost(num_heads="6", num_kv_heads="2", cost_context="100")
    frame = table(page, "Hkv")
    assert list(frame["Hkv"]) == [1, 2, 3, 6]
    assert list(frame["KV cache, bytes"]) == [2 * 2 * 100 * count * 5 * 4 for count in (1, 2, 3, 6)]
    assert list(frame["parameters"]) == [1800 + 2 * 30 * 5 * n + 60 + 2 * 5 * n for n in (1, 2, 3, 6)]
    assert list(frame["kind"]) == ["multi-query", "grouped, this one", "grouped", "multi-head"]
    page = whole(set_widget(page, "cost_context", 200))
    assert list(table(page, "Hkv")["KV cache, bytes"]) == [2 * 2 * 200 * count * 5 * 4 for count in (1, 2, 3, 6)]
    memory = table(page, "number format")
    assert list(memory["KV cache, bytes"]) == [2 * 2 * 200 * 2 * 5 * item for item in (4, 8, 2, 2, 2)]
    assert list(memory["one attention matrix, bytes"]) == [2 * 6 * 49 * item for item in (4, 8, 2, 2, 2)]


def test_every_table_can_be_taken_away() -> None:
    keys = {element.proto.id.rsplit("-", 1)[-1] for element in open_cost().get("download_button")}
    names = ("cost_steps", "cost_truth", "cost_growth", "cost_groups", "cost_memory")
    assert {f"{name}_{ending}" for name in names for ending in ("csv", "json")} <= keys


def test_what_is_too_large_to_run_still_has_its_cost() -> None:
    page = open_page(COST, source="random", batch="1", q_len="16384", mask="causal")
    said = texts(page).replace("\\", "")
    assert "more than the budget" in said
    assert f"forward {584_115_552_256 / 1e9:.4g} GFLOP" in said
    assert column(table(page, "formula"), "forward matmul, FLOP")["q·kᵀ"] == 2 * 16_384**2 * 512
    assert [shape["x0"] for shape in figure(page, "Growth")["layout"]["shapes"]] == [16_384]


def test_contradictory_choices_leave_the_last_layer() -> None:
    page = set_widget(open_cost(), "num_heads", 7)
    assert "30 is not divisible by num_heads 7" in texts(page).replace("\\", "")
    assert "forward" in texts(page)
    page = open_cost(mask="custom", custom_mask="10/01")
    assert "the custom mask is 2 x 2" in texts(page).replace("\\", "")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for an instant; the numbers are real, if rough."""
    for name in ("PRODUCT_S", "COPY_S", "STEPS_S"):
        monkeypatch.setattr(roofline, name, 0.01)
    monkeypatch.setattr(jobs, "POLL_S", 0.1)
    compute.shelf.clear()


@pytest.mark.usefixtures("quick")
def test_measuring_the_machine() -> None:
    page = open_cost(seed="41")
    assert not [one for one in figures(page) if one["layout"]["title"]["text"].startswith("Roofline")]
    page = press(page, "measure_machine")
    for _ in range(200):
        page = fine(page.run())
        if [one for one in figures(page) if one["layout"]["title"]["text"].startswith("Work and time")]:
            break
    traces = {trace["name"]: trace for trace in figure(page, "Roofline")["data"]}
    intensity, rate = np.array(traces["roof"]["x"]), np.array(traces["roof"]["y"])
    (ridge,), (peak,) = traces["ridge"]["x"], traces["ridge"]["y"]
    np.testing.assert_allclose(rate, np.minimum(peak, peak / ridge * intensity))
    assert set(traces) - {"roof", "ridge"} == {*PRODUCTS, "softmax"}
    assert traces["q·kᵀ"]["x"][0] == pytest.approx((ATTENTION + SCORES) / (4 * (2 * 2 * 7 * 30 + SCORES)))
    shares = {trace["name"]: trace for trace in figure(page, "Work and time")["data"]}
    work = 4 * PROJECTION + 2 * ATTENTION + 6 * SCORES + 2 * 7 * 4 * 30
    of_flops = dict(zip(shares["share of FLOPs"]["y"], shares["share of FLOPs"]["x"], strict=True))
    assert of_flops["softmax"] == pytest.approx(100 * 5 * SCORES / work)
    assert of_flops["q·kᵀ"] == pytest.approx(100 * (ATTENTION + SCORES) / work)
    assert math.fsum(shares["share of time"]["x"]) == pytest.approx(100)
