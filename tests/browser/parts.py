"""The parts of page Attention as the tests see them: the head grid, its pixels and texts, the large map, the link.

The grid lives in a shadow root, which playwright's selectors look into by themselves. It counts its paints and mounts
in data attributes; tests await what they expect to see and never a length of time.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect

GRID = ".head-grid"
Pixels = list[NDArray[np.uint8]]
_READ_PIXELS = """canvases => canvases.map(canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let text = "";
    for (const byte of data) text += String.fromCharCode(byte);
    return [canvas.height, canvas.width, btoa(text)];
})"""


def grid(page: Page) -> Locator:
    """Give the head grid."""
    return page.locator(GRID)


def canvases(page: Page) -> Locator:
    """Give the canvas of every head's map."""
    return page.locator(f"{GRID} .map canvas")


def maps(page: Page) -> Locator:
    """Give every head's map: what is hovered and clicked."""
    return page.locator(f"{GRID} .map")


def tiles(page: Page) -> Locator:
    """Give every head's tile: what has the focus."""
    return page.locator(f"{GRID} .tile")


def chips(page: Page) -> Locator:
    """Give the token chips."""
    return page.locator(f"{GRID} .token")


def readout(page: Page) -> Locator:
    """Give the line that says what the crosshair is on."""
    return page.locator(f"{GRID} .readout")


def values(page: Page) -> list[str]:
    """Give the value that each tile shows for the cell under the crosshair."""
    return page.locator(f"{GRID} .name .value").all_text_contents()


def paints(page: Page) -> int:
    """Count the paints of the grid so far."""
    return int(grid(page).get_attribute("data-painted") or 0)


def mark(page: Page) -> None:
    """Mark the grid's element, to know it again later."""
    grid(page).evaluate("grid => { grid.markedByTest = true; }")


def expect_marked(page: Page) -> None:
    """Check that the grid is still the marked element and was set up once: it was not mounted anew."""
    wait_until_idle(page)
    assert grid(page).evaluate("grid => grid.markedByTest === true"), "the grid was mounted anew"
    assert grid(page).get_attribute("data-mounts") == "1"


def wait_until_painted(page: Page, after: int = 0, timeout_ms: float | None = None) -> None:
    """Wait until the grid has been painted, or painted again since it had been painted `after` times."""
    expect(grid(page)).to_have_attribute("data-painted", re.compile(r"\d+"), timeout=timeout_ms)
    expect(grid(page)).not_to_have_attribute("data-painted", str(after))


def wait_for_heading(page: Page, title: str) -> None:
    """Wait until a page other than Attention stands there whole; `functools.partial` it to a `visit(ready=...)`."""
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    wait_until_idle(page)


def wait_until_idle(page: Page) -> None:
    """Wait until the server has answered all that was asked."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


def pixels(page: Page) -> Pixels:
    """Read every map: (rows, columns, RGBA) each."""
    return read_canvases(canvases(page))


def read_canvases(pictures: Locator) -> Pixels:
    """Read some canvases: (rows, columns, RGBA) each."""
    read = pictures.evaluate_all(_READ_PIXELS)
    return [np.frombuffer(base64.b64decode(data), np.uint8).reshape(rows, columns, 4) for rows, columns, data in read]


def wait_for_pixels(page: Page, accept: Callable[[Pixels], bool], what: str) -> Pixels:
    """Wait until the maps are as wanted."""
    end = time.monotonic() + 15
    while not accept(read := pixels(page)):
        assert time.monotonic() < end, f"the maps never were {what}"
        page.wait_for_timeout(50)
    return read


def expect_pixels(page: Page, wanted: Pixels) -> None:
    """Wait until every pixel is as wanted."""
    wait_for_pixels(page, lambda read: _same(read, wanted), "the same again")


def expect_other_pixels(page: Page, before: Pixels) -> Pixels:
    """Wait until every one of as many maps has changed."""
    return wait_for_pixels(
        page,
        lambda read: len(read) == len(before) and not any(_same([a], [b]) for a, b in zip(read, before, strict=True)),
        "all others than before",
    )


def _same(one: Pixels, other: Pixels) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def large(page: Page) -> Locator:
    """Give the large map of the chosen head."""
    return page.locator(".large-map")


def large_pixels(page: Page) -> Pixels:
    """Read the large map's one picture: (rows, columns, RGBA)."""
    return read_canvases(page.locator(".large-map canvas"))


def point_at(page: Page, row: int, column: int) -> str:
    """Put the mouse on a cell of the large map and read what it says."""
    area = page.locator(".large-map .map")
    rows, columns, _ = large_pixels(page)[0].shape
    box = area.bounding_box()
    assert box is not None
    area.hover(position={"x": (column + 0.5) / columns * box["width"], "y": (row + 0.5) / rows * box["height"]})
    return page.locator(".large-map .readout").inner_text()


def large_row(page: Page, row: int, size: int) -> NDArray[np.float64]:
    """Read the numbers of one row of the large map off its readout, five digits each, NaN where hidden."""
    said = [point_at(page, row, column).split(": ")[-1] for column in range(size)]
    return np.array([np.nan if text == "hidden by the mask" else float(text.split()[-1]) for text in said])


def large_labels(page: Page) -> Locator:
    """Give the labels of the large map's rows."""
    return page.locator(".large-map .rows span")


def large_title(page: Page) -> Locator:
    """Give the title of the large map."""
    return page.locator(".large-map .title")


def download(page: Page, key: str) -> str:
    """Press a download button by its key and give the text of the file."""
    with page.expect_download() as started:
        page.locator(f".st-key-{key}").get_by_role("button").click()
    return started.value.path().read_text(encoding="utf-8")


def query(page: Page) -> dict[str, str]:
    """Read the settings in the address."""
    return dict(parse_qsl(urlsplit(page.url).query))


def expect_query(page: Page, **settings: str) -> None:
    """Wait until the address carries these settings and no other."""
    page.wait_for_function(
        """wanted => {
            const found = Object.fromEntries(new URLSearchParams(location.search));
            const names = Object.keys(found);
            return names.length === Object.keys(wanted).length && names.every(name => found[name] === wanted[name]);
        }""",
        arg=settings,
    )


def slide_heads(page: Page, presses: int) -> None:
    """Move the heads slider with the keyboard, to the left where `presses` is negative."""
    slider = page.get_by_role("slider", name="Heads H")
    slider.focus()
    for _ in range(abs(presses)):
        slider.press("ArrowRight" if presses > 0 else "ArrowLeft")


def choose(page: Page, group: str, label: str) -> None:
    """Press one button of a row of buttons."""
    page.get_by_role("radiogroup", name=group).get_by_role("radio", name=label, exact=True).click()


def expect_chosen(page: Page, group: str, label: str) -> None:
    """Wait until a button of a row is the pressed one."""
    expect(page.get_by_role("radiogroup", name=group).get_by_role("radio", name=label, exact=True)).to_be_checked()


def type_number(page: Page, name: str, value: int) -> None:
    """Type a number and press Enter."""
    box = page.get_by_role("spinbutton", name=name)
    box.fill(str(value))
    box.press("Enter")


def press_mask(page: Page, name: str) -> None:
    """Press the button of a mask."""
    page.get_by_role("toolbar", name="Masks").get_by_role("button", name=name, exact=True).click()
