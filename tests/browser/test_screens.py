"""Screens: a phone's width and touch, a dark colour scheme, and how many bytes one change of the model sends."""

import pytest
from playwright.sync_api import expect

from tests.browser import parts

MOST_BYTES = 300_000
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
_CONTRAST = """elements => elements.map(element => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([red, green, blue]) => {
        const linear = c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = [red, green, blue].map(c => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const parent = node => node.parentElement || node.getRootNode().host;
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    let behind = element;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 250) behind = parent(behind);
    const ground = rgba(behind ? getComputedStyle(behind).backgroundColor : "white");
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    return { contrast: (high + 0.05) / (low + 0.05), ground: light(ground), text: element.textContent.slice(0, 40) };
})"""


def test_a_phone_shows_two_columns_without_sideways_scrolling_and_takes_a_tap(visit):
    page = visit("/", **PHONE)
    expect(parts.large_title(page)).to_contain_text("Head 0: weights,")
    parts.wait_until_idle(page)
    for selector in ("html", "body", '[data-testid="stMain"]'):
        too_wide = page.locator(selector).evaluate("element => element.scrollWidth - element.clientWidth")
        assert too_wide <= 0, f"{selector} is {too_wide} px too wide"
    columns = page.locator(".head-grid .tiles").evaluate("tiles => getComputedStyle(tiles).gridTemplateColumns")
    assert len(columns.split()) == 2
    box = parts.large(page).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    heatmap = parts.large(page).locator(".map").bounding_box()
    assert heatmap["width"] >= 150
    assert heatmap["x"] + heatmap["width"] <= 390
    parts.maps(page).nth(5).tap()
    parts.expect_query(page, head="5", queries="5")
    expect(parts.large_title(page)).to_contain_text("Head 5: weights,")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_colour_schemes(visit, scheme):
    page = visit("/?mask=causal&panel=bars", color_scheme=scheme)
    expect(parts.large_title(page)).to_contain_text("Head 0: weights,")
    parts.wait_until_idle(page)
    shown = [
        "h3",
        '[data-testid="stMain"] p',
        '[data-testid="stSidebar"] label p',
        ".head-grid .token",
        ".head-grid .name span:first-child",
        ".head-grid .readout",
        ".head-grid .legend span",
        ".large-map .title",
        ".large-map .labels span",
        ".large-map .readout",
        ".st-key-query_bars text",
    ]
    for selector in shown:
        measured = [text for text in page.locator(selector).evaluate_all(_CONTRAST) if text["text"].strip()]
        assert measured, selector
        for text in measured:
            assert text["contrast"] >= 4.5, (selector, text)
    ground = page.get_by_test_id("stApp").evaluate_all(_CONTRAST)[0]["ground"]
    assert ground < 0.05 if scheme == "dark" else ground > 0.9


def test_one_change_of_the_model_sends_few_bytes(visit):
    frames = []

    def watch(page):
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(len(frame))))

    page = visit("/?source=random&batch=1&q_len=16", watch=watch)
    sent = {}
    for q_len in (64, 256, 700):
        for name, value in (("Queries Sq", q_len), ("Seed", q_len)):
            parts.wait_until_idle(page)
            painted = parts.paints(page)
            frames.clear()
            parts.type_number(page, name, value)
            parts.wait_until_painted(page, painted)
            parts.wait_until_idle(page)
            sent[f"{name} = {value}"] = sum(frames)
        parts.expect_query(page, source="random", batch="1", q_len=str(q_len), seed=str(q_len))
    expect(parts.canvases(page)).to_have_count(8)
    assert all(0 < count <= MOST_BYTES for count in sent.values()), sent
