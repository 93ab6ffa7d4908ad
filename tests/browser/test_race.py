"""The training race in the browser: curves while it runs, the slider that changes the maps, and Cancel."""

from functools import partial

from playwright.sync_api import expect

from tests.browser import parts

READY = partial(parts.wait_for_heading, title="Gradients")
LINK = "/Gradients?lab=race&race_length=5&race_vocab=7&race_width=6&race_heads=3&race_batch=11"
LINK += "&race_schemes=xavier_uniform,zeros"


def grids(page):
    """The canvas of every head of every racer."""
    return page.locator(".head-grid .map canvas")


def press_race(page):
    page.get_by_role("button", name="Race", exact=True).click()


def test_a_race_gives_curves_reasons_and_maps_to_replay(visit):
    page = visit(f"{LINK}&race_steps=20&race_rate=0.02", ready=READY)
    press_race(page)
    expect(page.get_by_role("heading", name="Why")).to_be_visible()
    expect(page.get_by_text("had a gradient of exactly 0 at each of 20 steps")).to_be_visible()
    plots = page.locator(".js-plotly-plot")
    expect(plots).to_have_count(3)
    expect(page.get_by_role("progressbar")).to_have_count(0)
    for plot in (0, 1, 2):
        expect(plots.nth(plot).locator(".scatterlayer .js-line")).to_have_count(2)
    assert plots.nth(0).evaluate("plot => plot._fullData.map(line => line.x.length)") == [20, 20]
    expect(grids(page)).to_have_count(6)
    parts.wait_until_idle(page)
    last = parts.pixels(page)
    page.get_by_role("slider", name="Step").press("Home")
    expect(page.get_by_text("step 0:")).to_have_count(2)
    first = parts.wait_for_pixels(
        page, lambda read: len(read) == 6 and (read[0] != last[0]).any(), "those of the start"
    )
    assert all((one == other).all() for one, other in zip(first[3:], last[3:], strict=True)), "zeros never moves"
    parts.expect_query(
        page,
        lab="race",
        race_length="5",
        race_vocab="7",
        race_width="6",
        race_heads="3",
        race_batch="11",
        race_schemes="xavier_uniform,zeros",
        race_steps="20",
        race_rate="0.02",
        race_step="0",
    )


def test_a_long_race_shows_progress_and_stops_when_told(visit):
    page = visit(f"{LINK}&race_steps=3000", ready=READY)
    press_race(page)
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(3)  # while it runs
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Stopped after")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.get_by_role("heading", name="Why")).to_be_visible()
