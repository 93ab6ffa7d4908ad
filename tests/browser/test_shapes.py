"""Page Shapes in a real browser: its numbers against those computed here, choosing a step, a mistake and its cure."""

from functools import partial

import numpy as np
import torch
from playwright.sync_api import expect

from mha_core import Experiment, run
from tests.browser import parts

ready = partial(parts.wait_for_heading, title="Shapes")


def flow(page):
    """The text of the flow picture."""
    return page.get_by_test_id("stGraphVizChart")


def test_flow_picture_and_values_are_those_of_the_experiment(visit):
    query = "embed_dim=42&num_heads=3&mask=causal&step=q_heads"
    page = visit(f"/Shapes?{query}", ready=ready)
    expect(flow(page).get_by_text("permute(0, 2, 1, 3)").first).to_be_visible()
    expect(flow(page).get_by_text("1 x 3 x 11 x 14").first).to_be_visible()
    parts.wait_until_painted(page)
    experiment, problems = Experiment.from_query(query.replace("&step=q_heads", ""))
    assert problems == []
    wanted = run(experiment).q[0, :, 0].numpy()
    parts.maps(page).nth(2).hover(position={"x": 2, "y": 2})
    expect(parts.readout(page)).to_contain_text("token “The” (0) → channel “0” (0): q_heads")
    assert parts.values(page) == [f"{value:.4f}" for value in wanted[:, 0]]


def test_choosing_a_step_changes_picture_flow_and_address(visit):
    page = visit("/Shapes?embed_dim=42&num_heads=3", ready=ready)
    parts.wait_until_painted(page)
    before = parts.paints(page)
    box = page.get_by_role("combobox", name="Step to look at")
    box.click()
    box.fill("output")
    expect(page.get_by_role("option", name="output")).to_be_visible()
    box.press("Enter")
    parts.wait_until_painted(page, after=before)
    parts.expect_query(page, embed_dim="42", num_heads="3", step="output")
    expect(parts.tiles(page)).to_have_count(1)
    expect(page.get_by_text("The last matrix mixes the heads.")).to_be_visible()


def test_a_mistake_stops_the_flow_and_a_button_mends_it(visit):
    page = visit("/Shapes?num_heads=7", ready=ready)
    expect(flow(page).get_by_text("fails here")).to_be_visible()
    try:
        torch.zeros(1, 11, 512).view(1, 11, 7, 73)
    except RuntimeError as error:
        expect(page.get_by_text(str(error))).to_be_visible()
    page.get_by_role("button", name="num_heads 8").click()
    expect(flow(page).get_by_text("fails here")).to_have_count(0)
    expect(flow(page).get_by_text("fc_out(joined)")).to_be_visible()


def test_the_index_map_marks_where_the_element_lands(visit):
    page = visit("/Shapes?source=random&batch=1&q_len=7&embed_dim=15&num_heads=3", ready=ready)
    numbered = torch.arange(7 * 15)
    parts.type_number(page, "e, channel", 2)
    for which in (numbered.view(1, 7, 3, 5).permute(0, 2, 1, 3), numbered.view(1, 3, 7, 5)):
        landed = tuple(int(axis) for axis in (which == 3 * 15 + 2).nonzero()[0])
        expect(page.get_by_text(f"(0, 3, 2) lands at (b, h, s, d) = {landed}")).to_be_visible()


def test_the_table_downloads(visit):
    page = visit("/Shapes?embed_dim=42&num_heads=3", ready=ready)
    lines = parts.download(page, "trace_csv").splitlines()
    assert lines[0].startswith("step,operation,letters,shape")
    assert len(lines) == 1 + 16
    mean = float(next(line for line in lines if line.startswith("output,")).split(",")[-7])
    assert np.isfinite(mean)


def test_a_phone_needs_no_sideways_scrolling(visit):
    page = visit("/Shapes", ready=ready, viewport={"width": 390, "height": 844}, has_touch=True)
    expect(flow(page).get_by_text("fc_out(joined)")).to_be_visible()
    too_wide = page.locator('[data-testid="stMain"]').evaluate("main => main.scrollWidth - main.clientWidth")
    assert too_wide <= 0
