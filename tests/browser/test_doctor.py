"""Page Doctor in the browser: an error text explained as it is pasted, and a check-up from the button to the line."""

from functools import partial

from playwright.sync_api import expect

from tests.browser import parts

READY = partial(parts.wait_for_heading, title="Doctor")


def test_a_pasted_error_is_solved(visit):
    page = visit("/Doctor", ready=READY)
    expect(page.get_by_text("7 x 73 = 511")).to_be_visible()
    box = page.get_by_label("Error text, or a whole traceback")
    box.fill("RuntimeError: shape '[3, 14, 5, 20]' is invalid for input of size 4326")
    box.press("Control+Enter")
    expect(page.get_by_text("5 x 20 = 100")).to_be_visible()
    expect(page.get_by_text("7 x 73 = 511")).to_have_count(0)


def test_a_check_up_names_the_line_and_gives_a_report(visit):
    page = visit("/Doctor?doctor_view=module", ready=READY)
    page.get_by_role("button", name="Check it up").click()
    expect(page.get_by_text("verdict: fail")).to_be_visible(timeout=90_000)
    expect(page.get_by_text("view without a transpose").first).to_be_visible()
    expect(page.get_by_text("module.py, line 18").first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML").click()
    report = download.value.path().read_text(encoding="utf-8")
    assert "<script" not in report
    assert "view without a transpose" in report
    page.get_by_role("radio", name="A sound layer").click()
    expect(page.get_by_text("verdict: fail")).to_have_count(0)
