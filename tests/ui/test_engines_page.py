"""Page Engines: the table of agreement against numbers of torch, the measurement as a job, verdicts and downloads."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from streamlit.testing.v1 import AppTest

from mha_core import Experiment, run
from mha_core.init_schemes import initial_weights
from mha_core.lenses.bench_timing import Timing
from mha_core.lenses.bench_variants import Variant, variants
from mha_core.lenses.benchmark import Measurement
from tests.lenses.reference import reference
from tests.ui.page import decode, figures, fine, link, open_page, press, set_widget, texts
from ui import engines_figures

ENGINES = "pages/5_Engines.py"
SMALL = {"embed_dim": "30", "num_heads": "5", "text": "one two three four five six seven"}
QUICK = SMALL | {"bench_dtypes": "float32", "bench_lengths": "16", "bench_seconds": "1"}
PATIENCE_S = 40


def rows_of(page: AppTest, table: int = 0) -> dict[tuple[str, str], Any]:
    """A table of the page by variant and number format."""
    frame: pd.DataFrame = page.dataframe[table].value
    return {(row["variant"], row["dtype"]): row for _, row in frame.iterrows()}


def torch_difference(experiment: Experiment) -> tuple[float, float]:
    """How far nn.MultiheadAttention is from the float64 reference of the tests: output and weights."""
    done, config = run(experiment), experiment.attention
    drawn, x = initial_weights(config, experiment.init, experiment.seed), done.inputs.query
    peer = torch.nn.MultiheadAttention(config.embed_dim, config.num_heads, batch_first=True).eval()
    state = {"in_proj_weight": torch.cat([drawn.q, drawn.k, drawn.v]), "out_proj.weight": drawn.out}
    biases = {"in_proj_bias": torch.cat([drawn.q_bias, drawn.k_bias, drawn.v_bias]), "out_proj.bias": drawn.out_bias}
    peer.load_state_dict(state | biases)
    hidden = None if done.mask is None else ~done.mask[0, 0]
    with torch.no_grad():
        output, maps = peer(x, x, x, attn_mask=hidden, average_attn_weights=False)
    truth = reference(done)
    return np.abs(output.numpy() - truth.output).max(), np.abs(maps.numpy() - truth.weights).max()


def measured(page: AppTest) -> AppTest:
    """The page when its job is done."""
    end = time.monotonic() + PATIENCE_S
    while any(button.key == "cancel_bench" for button in fine(page.run()).button):
        assert time.monotonic() < end, "the measurement did not end"
        time.sleep(0.1)
    return page


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_agreement_is_shown_at_once(mask: str) -> None:
    page = open_page(ENGINES, **SMALL, mask=mask)
    assert "46 of 46 variants agree with the float64 reference" in texts(page).replace("\\", "")
    rows = rows_of(page)
    assert len(rows) == 46
    assert {row["agrees"] for row in rows.values()} == {"yes"}
    masks = () if mask == "none" else (mask,)
    fields = {"text": SMALL["text"], "embed_dim": 30, "num_heads": 5, "mask": masks}
    output, maps = torch_difference(Experiment.from_fields(fields))
    row = rows["nn.MultiheadAttention, weights", "float32"]
    assert row["max_difference"] == pytest.approx(output, rel=1e-6, abs=1e-12)
    assert row["max_weight_difference"] == pytest.approx(maps, rel=1e-6, abs=1e-12)
    assert np.isnan(rows["projections around raw SDPA", "float32"]["max_weight_difference"])
    assert all(rows[name, "bfloat16"]["tolerance"] > row["tolerance"] for name, _ in rows if "one head" not in name)
    assert not page.get("plotly_chart")


def test_what_cannot_be_compared_is_named() -> None:
    page = open_page(ENGINES, **SMALL, num_kv_heads="1", dropout="0.1", bench_dtypes="float32")
    said = texts(page).replace("\\", "")
    assert "13 of 13 variants agree" in said
    assert "nn.MultiheadAttention, no weights: it has no grouped key/value heads" in said
    assert "Dropout is off here" in said


def test_an_experiment_too_wide_to_be_compared_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(6 * 10**6))
    page = open_page(ENGINES, embed_dim="384", num_heads="2")
    said = texts(page).replace("\\", "")
    assert "No variant can be compared" in said
    assert "more than the budget of 5.7 MiB" in said


def test_choices_travel_in_the_link_and_may_be_empty() -> None:
    page = set_widget(open_page(ENGINES, **SMALL), "bench_dtypes", ["float64"])
    assert link(page)["bench_dtypes"] == "float64"
    assert len(rows_of(open_page(ENGINES, **link(page)))) == 16
    page = open_page(ENGINES, **SMALL, bench_dtypes="none")
    assert "Choose at least one number format" in texts(page)
    page = open_page(ENGINES, **SMALL, bench_lengths="none")
    assert "at least one length" in texts(page)
    assert page.button(key="bench_measure").disabled


def test_a_measurement_gives_times_memory_plots_and_verdicts() -> None:
    page = measured(press(open_page(ENGINES, **QUICK), "bench_measure"))
    rows = rows_of(page, 1)
    assert {name for name, _ in rows} == {variant.name for variant in variants(("float32",))}
    assert all(row["low_quartile_ms"] <= row["median_ms"] <= row["high_quartile_ms"] for row in rows.values())
    assert all(row["q_len"] == 16 and row["runs"] >= 1 for row in rows.values())
    (time_figure, memory_figure) = figures(page)
    for figure, column, factor in ((time_figure, "median_ms", 1), (memory_figure, "peak_extra_bytes", 2**-20)):
        (trace,) = figure["data"]
        drawn = [rows[text.removesuffix(", float32"), "float32"][column] * factor for text in trace["text"]]
        assert np.allclose(trace["x"], drawn, rtol=1e-5)
        assert len(drawn) == 16
    said = texts(page).replace("\\", "")
    assert "On small matrices view + permute is faster than einops." in said
    assert "It needs a second, larger length" in said
    assert "小矩阵：view+permute 更快" in said
    assert "have changed since" not in said
    page = set_widget(page, "num_heads", 3)
    assert "have changed since this was measured" in texts(page)


def test_a_measurement_can_be_cancelled() -> None:
    link_ = QUICK | {"bench_seconds": "60"}
    page = press(open_page(ENGINES, **link_), "bench_measure")
    page = measured(press(page, "cancel_bench"))
    assert "Stopped after" in texts(page)
    assert "of 144" in texts(page)


def measurement(variant: Variant, q_len: int, middle: float) -> Measurement:
    return Measurement(variant, 1, q_len, q_len, "forward", Timing(middle, middle / 2, middle * 3, 9), q_len * 2**20)


def test_lines_over_lengths_carry_values_and_spread() -> None:
    listed = variants(("float32",))
    rows = [measurement(v, q, n + q / 7) for n, v in enumerate(listed) for q in (53, 11)]
    figure = decode(engines_figures.lines(rows, engines_figures.TIME, "Time").to_plotly_json())
    assert len(figure["data"]) == 16
    for number, trace in enumerate(figure["data"]):
        middle = np.array([number + 11 / 7, number + 53 / 7])
        assert np.allclose(trace["x"], [11, 53])
        assert np.allclose(trace["y"], middle)
        assert np.allclose(trace["error_y"]["array"], 2 * middle)
        assert np.allclose(trace["error_y"]["arrayminus"], middle / 2)
    assert [trace["name"] for trace in figure["data"] if trace["showlegend"]] == [
        "explicit",
        "chunked",
        "sdpa",
        "nn.MHA",
        "raw SDPA",
        "one head",
    ]
    looks = {(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"]) for t in figure["data"]}
    assert len(looks) == 16
    assert (figure["layout"]["xaxis"]["type"], figure["layout"]["yaxis"]["type"]) == ("log", "log")


def test_bars_leave_a_gap_where_nothing_was_measured() -> None:
    one = measurement(Variant(), 11, 2.0)
    other = Measurement(Variant(kernel="sdpa", need_weights=False), 1, 11, 11, "forward", reason="too large")
    figure = decode(engines_figures.bars([one, other], engines_figures.MEMORY, "Memory").to_plotly_json())
    assert figure["data"][0]["x"][0] == 11
    assert np.isnan(figure["data"][0]["x"][1])
