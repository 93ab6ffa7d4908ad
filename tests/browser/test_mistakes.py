"""Mistakes and hostile text: a mistake is explained and repaired with one press, and text of a person stays text."""

from urllib.parse import quote

from playwright.sync_api import expect

from tests.browser import parts
from ui.attention import PANELS

NOWHERE = "http://127.0.0.1:9/x.png"
HOSTILE = f"<script>alert(1)</script> ![x]({NOWHERE}) <img src={NOWHERE} onerror=alert(2)>"


def test_heads_that_do_not_divide_the_width_are_explained_and_repaired(visit):
    page = visit("/")
    parts.mark(page)
    parts.slide_heads(page, -1)
    lesson = page.locator(".st-key-lesson")
    expect(lesson).to_contain_text("512 = 7 x 73 + 1")
    expect(parts.canvases(page)).to_have_count(8)  # the last experiment that could be run stays
    lesson.get_by_role("button", name="num_heads 8", exact=True).click()
    expect(lesson).to_have_count(0)
    expect(page.get_by_role("slider", name="Heads H")).to_have_value("8")
    parts.expect_query(page)
    expect(parts.canvases(page)).to_have_count(8)
    parts.expect_marked(page)


def test_a_mistake_in_a_link_and_an_empty_text_are_explained_and_repaired(visit):
    page = visit("/?num_heads=7&mask=causal")
    lesson = page.locator(".st-key-lesson")
    expect(lesson).to_contain_text("512 = 7 x 73 + 1")
    lesson.get_by_role("button", name="num_heads 8", exact=True).click()
    expect(lesson).to_have_count(0)
    parts.expect_query(page, mask="causal")
    parts.wait_for_pixels(
        page, lambda maps: len(maps) == 8 and all((one[0, 1:] == 0).all() for one in maps), "those of a causal mask"
    )
    box = page.get_by_role("textbox", name="Text, one sequence per line")
    box.fill("")
    box.press("Control+Enter")
    expect(lesson).to_contain_text("no token")
    lesson.get_by_role("button", name="the example sentence").click()
    expect(lesson).to_have_count(0)
    expect(parts.chips(page)).to_have_count(11)


def test_linked_and_typed_markup_is_shown_as_text(visit):
    asked = []
    names = [f"![x]({NOWHERE})", "<script>alert(3)</script>"]
    link = "&".join([f"{quote(name)}=1" for name in names] + [f"stage={quote(HOSTILE)}", f"text={quote(HOSTILE)}"])
    page = visit(f"/?{link}", watch=lambda page: page.on("request", lambda request: asked.append(request.url)))
    message = page.locator(".st-key-link_problems")
    for text in (f"![x]({NOWHERE})", "<script>alert(3)</script>", "<script>alert(1)</script>"):
        expect(message).to_contain_text(text)
    box = page.get_by_role("textbox", name="Text, one sequence per line")
    box.fill(f"typed {HOSTILE}")
    box.press("Control+Enter")
    expect(parts.chips(page).nth(0)).to_have_text("typed")
    expect(parts.chips(page).nth(2)).to_have_text("script")
    assert "".join(parts.chips(page).all_text_contents()) == f"typed{HOSTILE}".replace(" ", "")
    for panel in PANELS.values():
        parts.choose(page, "A closer look", panel)
        parts.expect_chosen(page, "A closer look", panel)
        parts.wait_until_idle(page)
    expect(parts.large_labels(page).nth(0)).to_have_text("typed")
    assert page.locator("img[src*='127.0.0.1:9'], [onerror]").count() == 0
    assert not [url for url in asked if url.startswith("http://127.0.0.1:9")]


def test_words_that_look_like_markup_stay_text_in_every_label(visit):
    words = ["b_i_b", "$x$", "&lt;", "**b**"]
    page = visit(f"/?panel=bars&text={quote(' '.join(words))}&queries=0")
    chips = parts.chips(page).all_text_contents()
    assert "".join(chips) == "".join(words)
    expect(parts.large_labels(page)).to_have_text(chips)
    expect(page.get_by_role("button", name="Remove b_i_b (0)")).to_be_visible()
