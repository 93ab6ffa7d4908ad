"""Page Engines in the browser: agreement without a click, a measurement with progress, cancel, and downloads."""

import json
from functools import partial

import numpy as np
import torch
from playwright.sync_api import expect

from mha_core import Experiment, run
from mha_core.init_schemes import initial_weights
from tests.browser import parts
from tests.lenses.reference import reference

READY = partial(parts.wait_for_heading, title="Engines")
SMALL = {"text": "one two three four five", "embed_dim": 30, "num_heads": 5, "mask": ("causal",)}
LINK = "/Engines?text=one+two+three+four+five&embed_dim=30&num_heads=5&mask=causal&bench_dtypes=float32"


def raw_difference() -> float:
    """How far torch's own fused attention, written here, is from the float64 reference of the tests."""
    experiment = Experiment.from_fields(SMALL)
    done = run(experiment)
    drawn, x = initial_weights(experiment.attention, experiment.init, experiment.seed), done.inputs.query
    q, k, v = ((x @ matrix.T).view(1, 5, 5, 6).transpose(1, 2) for matrix in (drawn.q, drawn.k, drawn.v))
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    output = context.transpose(1, 2).reshape(1, 5, 30) @ drawn.out.T
    return float(np.abs(output.numpy() - reference(done).output).max())


def test_agreement_stands_there_without_a_click(visit):
    page = visit(LINK, ready=READY)
    expect(page.get_by_text("16 of 16 variants agree with the float64 reference")).to_be_visible()
    rows = {row["variant"]: row for row in json.loads(parts.download(page, "agreement_json"))}
    assert len(rows) == 16
    assert {row["agrees"] for row in rows.values()} == {"yes"}
    expected = raw_difference()
    shown = rows["projections around raw SDPA"]
    assert 0 < expected <= shown["tolerance"]
    assert abs(shown["max_difference"] - expected) <= 2e-7  # one rounding of a float32 near 1 may fall otherwise
    assert rows["separate · view · explicit"]["max_weight_difference"] < 1e-6
    table = parts.download(page, "agreement_csv").splitlines()
    assert len(table) == 17
    assert table[0].startswith("variant,dtype,batch,q_len,k_len,pass,")


def test_a_measurement_shows_progress_and_a_result(visit):
    page = visit(f"{LINK}&bench_lengths=16&bench_seconds=2", ready=READY)
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text("What two articles claim, on this machine")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    expect(page.get_by_role("progressbar")).to_have_count(0)
    bars = page.locator(".js-plotly-plot").first.locator(".bars .point")
    expect(bars).to_have_count(16)
    rows = {row["variant"]: row for row in json.loads(parts.download(page, "engines_json"))}
    assert len(rows) == 16
    for row in rows.values():
        assert 0 < row["low_quartile_ms"] <= row["median_ms"] <= row["high_quartile_ms"] < 1000
        assert row["peak_extra_bytes"] >= 4 * 16 * 30  # the output
    drawn = page.locator(".js-plotly-plot").first.evaluate("plot => [...plot._fullData[0].x]")
    assert np.allclose(drawn, [row["median_ms"] for row in rows.values()], rtol=1e-5)
    verdicts = {claim["name"]: claim["verdict"] for claim in json.loads(parts.download(page, "claims_json"))}
    assert verdicts["einops on large matrices"] == "not measured"
    assert verdicts["view on small matrices"] != "not measured"


def test_a_long_measurement_can_be_cancelled_and_ages(visit):
    page = visit(f"{LINK}&bench_lengths=64,256&bench_seconds=60", ready=READY)
    page.get_by_role("button", name="Measure", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Stopped after")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.get_by_text("have changed since this was measured")).to_have_count(0)
    parts.wait_until_idle(page)
    parts.slide_heads(page, 1)
    expect(page.get_by_text("have changed since this was measured")).to_be_visible()
