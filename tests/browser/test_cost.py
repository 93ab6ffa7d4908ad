"""Page Cost in the browser: what is shown against numbers worked out here from the sizes alone."""

import csv
import io
import json
from functools import partial

from playwright.sync_api import expect

from tests.browser import parts

READY = partial(parts.wait_for_heading, title="Cost — what does each step cost?")
LINK = "/Cost?source=random&batch=2&q_len=7&embed_dim=30&num_heads=5"
HAS_BARS = """([key, factor, wanted]) => {
    const plot = document.querySelector(`.st-key-${key} .js-plotly-plot`);
    const trace = plot?._fullData?.[0];
    if (!trace || trace.y.length !== Object.keys(wanted).length) return false;
    return Array.from(trace.y).every((step, place) => Math.abs(trace.x[place] * factor / wanted[step] - 1) < 1e-9);
}"""


def products(length, embed):
    """FLOPs of the six products of two sequences."""
    projection, attention = 2 * 2 * length * embed * embed, 2 * 2 * length * length * embed
    steps = dict.fromkeys(("q projection", "k projection", "v projection"), projection)
    return steps | {"q·kᵀ": attention, "weights·v": attention, "output projection": projection}


def expect_bars(page, key, factor, wanted):
    """Wait until the bars of a figure are these, `factor` being its unit's."""
    page.wait_for_function(HAS_BARS, arg=[key, factor, wanted])


def test_numbers_units_and_length(visit):
    page = visit(LINK, ready=READY)
    work = sum(products(7, 30).values())
    expect(page.get_by_text(f"forward {work / 1e3:.4g} kFLOP")).to_be_visible()
    expect_bars(page, "cost_bars_matmul", 1e3, products(7, 30))
    rest = {"scale": 2 * 5 * 49, "softmax": 5 * 2 * 5 * 49, "bias": 2 * 7 * 4 * 30}
    expect_bars(page, "cost_bars_elementwise", 1e3, rest)

    parts.choose(page, "Unit", "MAC")
    expect(page.get_by_text(f"forward {work / 2e3:.4g} kMAC")).to_be_visible()
    expect_bars(page, "cost_bars_matmul", 2e3, products(7, 30))
    expect_bars(page, "cost_bars_elementwise", 1e3, rest)
    parts.wait_until_idle(page)

    parts.type_number(page, "Queries Sq", 11)
    expect(page.get_by_text(f"forward {sum(products(11, 30).values()) / 2e3:.4g} kMAC")).to_be_visible()
    expect_bars(page, "cost_bars_matmul", 2e3, products(11, 30))
    parts.wait_until_idle(page)
    parts.slide_heads(page, 1)
    expect_bars(page, "cost_bars_elementwise", 1e3, {"scale": 2 * 6 * 121, "softmax": 60 * 121, "bias": 2 * 11 * 120})
    expect_bars(page, "cost_bars_matmul", 2e3, products(11, 30))  # the width decides, not into how many heads it is cut


def test_tables_are_taken_away_and_the_mask_is_counted(visit):
    page = visit(f"{LINK}&mask=causal&cost_pairs=needed", ready=READY)
    expect(page.get_by_text("The mask allows 56 of 98 (query, key) pairs, 57.1%")).to_be_visible()
    steps = {row["step"]: row for row in csv.DictReader(io.StringIO(parts.download(page, "cost_steps_csv")))}
    full = products(7, 30)
    for step, flops in full.items():
        needed = flops * 28 // 49 if step in ("q·kᵀ", "weights·v") else flops
        assert int(steps[step]["forward matmul, FLOP"]) == needed
    assert int(steps["softmax"]["forward elementwise, operations"]) == 5 * 5 * 56
    counts = {row["count"]: row for row in json.loads(parts.download(page, "cost_truth_json"))}
    assert counts["counter, explicit kernel"]["forward, FLOP"] == f"{sum(full.values()):,}"
    seen = sum(flops for step, flops in full.items() if step.endswith("projection"))
    assert counts["counter, fused kernel (SDPA)"]["forward, FLOP"] == f"{seen:,}"
    expect(page.get_by_role("cell", name=f"{seen:,}").first).to_be_visible()

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.querySelector('.st-key-cost_bars_matmul .js-plotly-plot').clientWidth < 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_too_long_to_run_and_the_machine(visit):
    page = visit("/Cost?source=random&batch=1&q_len=16384&kernel=sdpa", ready=READY)
    expect(page.get_by_text("more than the budget")).to_be_visible()
    expect(page.get_by_text(f"forward {(8 * 16_384 * 512**2 + 4 * 512 * 16_384**2) / 1e9:.4g} GFLOP")).to_be_visible()
    page.get_by_role("button", name="Measure this machine").click()
    expect(page.locator(".st-key-cost_roofline .js-plotly-plot")).to_be_visible()
    expect(page.get_by_text("GFLOP/s in a product of side")).to_be_visible()
