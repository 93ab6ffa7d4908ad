"""Page Gradients in a real browser: a preset, the norms of a stack against those computed here, a sweep stopped."""

import re
from functools import partial

import numpy as np
from playwright.sync_api import expect

from mha_core import Experiment
from mha_core.lenses.depth import Arrangement, profile
from tests.browser import parts

ready = partial(parts.wait_for_heading, title="Gradients")
CURVE = "plot => Array.from(plot._fullData[0].y)"


def test_a_preset_sets_the_experiment_and_a_reader_of_the_link_sees_it(visit):
    page = visit("/Gradients?seed=5", ready=ready)
    page.get_by_role("button", name="Too large a gain").click()
    parts.expect_query(page, gain="2.0", lab="depth")
    expect(page.get_by_text("Every weight is twice as large.")).to_be_visible()
    parts.expect_chosen(page, "Look at", "depth")
    again = visit("/Gradients?gain=2.0&lab=depth", ready=ready)
    expect(again.get_by_text("Every weight is twice as large.")).to_be_visible()


def test_the_curve_is_the_gradient_of_the_stack(visit):
    query = "embed_dim=26&num_heads=2&mask=causal"
    page = visit(f"/Gradients?{query}&lab=depth&depth_layers=5", ready=ready)
    plot = page.locator(".st-key-depth_profile .js-plotly-plot")
    expect(plot).to_be_visible()
    found = profile(Experiment.from_query(query)[0], 5, Arrangement())
    np.testing.assert_allclose(plot.evaluate(CURVE), [layer.input_gradient for layer in found], rtol=1e-6)


def test_the_phase_diagram_grows_and_can_be_stopped(visit):
    page = visit("/Gradients?lab=depth&depth_layers=2", ready=ready)
    page.get_by_role("button", name="Compute").click()
    expect(page.get_by_text(re.compile(r"^\d+ of 42$"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile(r"^Stopped after \d+ of 42\.$"))).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
