"""Choosing in the head grid: with the mouse, with the keyboard alone, and the crosshair that all tiles share."""

import re

from playwright.sync_api import expect

from mha_core.sources.tokens import DEFAULT_TEXT
from tests.browser import parts

WORDS = DEFAULT_TEXT.split()


def hover_cell(page, head, row, column, size=11):
    """Put the mouse on the middle of a cell."""
    box = parts.maps(page).nth(head).bounding_box()
    place = {"x": (column + 0.5) / size * box["width"], "y": (row + 0.5) / size * box["height"]}
    parts.maps(page).nth(head).hover(position=place)


def test_click_on_a_tile_chooses_its_head(visit):
    page = visit("/")
    box = parts.maps(page).nth(3).bounding_box()
    parts.maps(page).nth(3).click(position={"x": 0.5 / 11 * box["width"], "y": 4.5 / 11 * box["height"]})
    parts.expect_query(page, head="3", queries="4")
    expect(parts.large_title(page)).to_contain_text("Head 3: weights,")
    expect(parts.tiles(page).nth(3)).to_have_attribute("aria-selected", "true")
    expect(parts.tiles(page).nth(0)).to_have_attribute("aria-selected", "false")
    expect(parts.chips(page).nth(4)).to_have_class(re.compile(r"\bchosen\b"))


def test_hover_shows_the_crosshair_and_the_values_of_all_heads(visit):
    page = visit("/")
    hover_cell(page, 5, 10, 2)
    expect(parts.readout(page)).to_contain_text("query “tired” (10) → key “didn't” (2)")
    expect(parts.grid(page).locator(".line.down:visible")).to_have_count(8)
    expect(parts.grid(page).locator(".line.across:visible")).to_have_count(8)
    exact = parts.values(page)
    assert all(re.fullmatch(r"0\.\d{4}", text) for text in exact), exact
    assert exact[0] == f"{parts.large_row(page, 10, 3)[2]:.4f}"
    hover_cell(page, 5, 3, 7)
    expect(parts.readout(page)).to_contain_text("query “cross” (3) → key “it” (7)")
    rough = parts.values(page)
    assert all(re.fullmatch(r"≈\d\.\d+", text) for text in rough), rough
    page.mouse.move(5, 5)
    expect(parts.grid(page).locator(".line.down:visible")).to_have_count(0)


def test_the_keyboard_alone_chooses_head_and_query(visit):
    page = visit("/")
    parts.chips(page).last.focus()
    page.keyboard.press("Tab")
    expect(parts.tiles(page).nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight")
    parts.expect_query(page, head="1", queries="10")
    expect(parts.large_title(page)).to_contain_text("Head 1: weights,")
    expect(parts.tiles(page).nth(1)).to_be_focused()
    parts.wait_until_idle(page)
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Shift+ArrowRight")
    expect(parts.readout(page)).to_contain_text("query “was” (8) → key “animal” (1)")
    page.keyboard.press("Enter")
    parts.expect_query(page, head="1", queries="8")
    expect(parts.chips(page).nth(8)).to_have_class(re.compile(r"\bchosen\b"))
    expect(parts.tiles(page).nth(1)).to_be_focused()
    top = parts.tiles(page).evaluate_all("tiles => tiles.map(tile => tile.getBoundingClientRect().top)")
    below = 1 + next(head for head, place in enumerate(top) if place > top[0])
    page.keyboard.press("ArrowDown")
    parts.expect_query(page, head=str(below), queries="8")
    expect(parts.tiles(page).nth(below)).to_be_focused()


def test_several_tokens_are_chosen_with_ctrl(visit):
    page = visit("/?panel=bars")
    parts.mark(page)
    parts.chips(page).nth(1).click()
    parts.expect_query(page, panel="bars", queries="1")
    parts.chips(page).nth(3).click(modifiers=["Control"])
    parts.expect_query(page, panel="bars", queries="1,3")
    chosen = parts.grid(page).locator(".token.chosen")
    expect(chosen).to_have_text([WORDS[1], WORDS[3]])
    expect(page.get_by_text("mean of animal, cross looks")).to_be_visible()
    expect(page.get_by_role("button", name="Remove cross (3)")).to_be_visible()
    parts.chips(page).nth(6).click(modifiers=["Control"])
    parts.chips(page).nth(1).click(modifiers=["Control"])  # at once: the answer to the press before is not awaited
    parts.expect_query(page, panel="bars", queries="3,6")
    expect(chosen).to_have_text([WORDS[3], WORDS[6]])
    expect(page.get_by_role("button", name=re.compile(r"^Remove "))).to_have_count(2)  # the list has followed
    page.get_by_role("button", name="Remove cross (3)").click()
    parts.expect_query(page, panel="bars", queries="6")
    expect(chosen).to_have_text([WORDS[6]])
    parts.expect_marked(page)
