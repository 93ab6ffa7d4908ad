"""The address is the experiment: links, a second reader, back, reload, bad values, and a first request."""

import pytest
from playwright.sync_api import expect

from tests.browser import parts
from tests.browser.conftest import Server
from ui.attention import COLOURS, STAGES

LINK = "/?num_heads=4&mask=causal&positions=sinusoidal&seed=3&head=2&panel=statistics"
STATISTICS = '[data-testid="stDataFrame"] table[role="grid"]'


def numbers(page):
    """Read every number that the page shows: statistics, large map, and the exact values under the crosshair."""
    expect(page.locator(f"{STATISTICS} td").nth(8)).to_be_attached()
    parts.maps(page).nth(0).scroll_into_view_if_needed()
    box = parts.maps(page).nth(0).bounding_box()
    parts.maps(page).nth(0).hover(position={"x": 0.5 / 11 * box["width"], "y": 10.5 / 11 * box["height"]})
    expect(parts.readout(page)).to_contain_text("(10) → key “The” (0)")
    return {
        "values": parts.values(page),  # before the mouse goes to the large map
        "statistics": page.locator(f"{STATISTICS} td").all_text_contents(),
        "large map": parts.large_row(page, 10, 11).tolist(),
    }


def test_the_same_link_gives_a_second_reader_identical_numbers(visit):
    first, second = visit(LINK), visit(LINK)
    for page in (first, second):
        expect(parts.canvases(page)).to_have_count(4)
        expect(parts.large_title(page)).to_contain_text("Head 2: weights,")
        parts.wait_until_idle(page)
    parts.expect_pixels(second, parts.pixels(first))
    shown, again = numbers(first), numbers(second)
    assert len(shown["statistics"]) >= 4 * 5
    assert all(float(text) > 0 for text in shown["values"])
    assert str(shown) == str(again)  # as text, since a masked cell is NaN


def test_reload_keeps_what_was_chosen(visit):
    page = visit("/")
    parts.choose(page, "Stage", STAGES["scores"])
    parts.slide_heads(page, -4)
    parts.tiles(page).nth(2).locator(".map").click()
    parts.expect_query(page, stage="scores", num_heads="4", head="2", queries="5")
    expect(parts.large_title(page)).to_contain_text(f"Head 2: {STAGES['scores']},")
    parts.wait_until_idle(page)
    before = parts.pixels(page)
    page.reload()
    parts.wait_until_painted(page)
    expect(parts.large_title(page)).to_contain_text(f"Head 2: {STAGES['scores']},")
    parts.expect_query(page, stage="scores", num_heads="4", head="2", queries="5")
    parts.expect_chosen(page, "Stage", STAGES["scores"])
    parts.expect_pixels(page, before)


def test_back_from_the_first_change_returns_the_page_as_it_opened(visit):
    page = visit("/")
    before = parts.pixels(page)
    parts.choose(page, "Stage", STAGES["scores"])
    parts.expect_query(page, stage="scores")
    parts.wait_until_idle(page)
    page.go_back()
    parts.expect_chosen(page, "Stage", "weights")
    parts.expect_query(page)
    expect(parts.large_title(page)).to_contain_text("Head 0: weights,")
    parts.expect_pixels(page, before)


def test_back_and_forward_go_through_the_changes(visit):
    page = visit("/?num_heads=4")
    first = parts.pixels(page)
    seed = page.get_by_role("spinbutton", name="Seed")
    parts.type_number(page, "Seed", 1)
    parts.expect_query(page, num_heads="4", seed="1")
    second = parts.expect_other_pixels(page, first)
    parts.wait_until_idle(page)
    page.go_back()
    expect(seed).to_have_value("0")
    parts.expect_pixels(page, first)
    parts.expect_query(page, num_heads="4")
    parts.wait_until_idle(page)
    page.go_forward()
    expect(seed).to_have_value("1")
    parts.expect_pixels(page, second)
    parts.expect_query(page, num_heads="4", seed="1")


def test_quick_changes_are_all_kept(visit):
    page = visit("/?source=random&mask=padding&positions=rotary&seed=1&stage=masked&colour=log")
    parts.wait_until_idle(page)
    # The pause is between two presses of a person who does not wait for the answer; nothing is awaited with it.
    page.evaluate(
        """async ([words, pause]) => {
            for (const word of words) {
                [...document.querySelectorAll("button")].find(button => button.textContent.trim() === word).click();
                await new Promise(resolve => setTimeout(resolve, pause));
            }
        }""",
        [["text", STAGES["weights"], "none", COLOURS["fixed"], "padding"], 100],
    )
    parts.expect_query(page, seed="1")
    parts.wait_until_idle(page)
    assert parts.query(page) == {"seed": "1"}


def test_bad_values_in_a_link_are_named_and_the_rest_is_used(visit):
    page = visit("/Attention?num_heads=zero&stage=pink&nonsense=1&mask=causal")
    expect(parts.canvases(page)).to_have_count(8)
    message = page.locator(".st-key-link_problems")
    for part in ("num_heads is zero", "stage is pink", "'nonsense' is not a setting"):
        expect(message).to_contain_text(part)
    expect(message).not_to_contain_text("causal")
    parts.expect_query(page, mask="causal")
    message.get_by_role("button", name="Understood").click()
    expect(message).to_have_count(0)
    parts.expect_query(page, mask="causal")


@pytest.mark.parametrize(
    ("command", "port_option"),
    [(["-m", "ui"], "--port"), (["-m", "streamlit", "run", "app.py"], "--server.port")],
    ids=["python -m ui", "streamlit run"],
)
def test_a_deep_link_may_be_the_first_request_of_a_server(visit, command, port_option):
    with Server(command, port_option) as fresh:
        page = visit("/Attention?num_heads=4", server=fresh)
        expect(parts.canvases(page)).to_have_count(4)
        expect(page.get_by_role("heading", name="Attention")).to_be_visible()
        expect(page.get_by_role("slider", name="Heads H")).to_have_value("4")
        parts.wait_until_idle(page)
        expect(page.get_by_text("Page not found")).to_have_count(0)
        expect(page).to_have_title("Attention · MHA Lab")
        assert page.url == f"{fresh.url}/Attention?num_heads=4"
        page.close()
