"""Page Clinic in a real browser: from a symptom to a mistake to the exercise, and on a phone."""

from functools import partial

import numpy as np
from playwright.sync_api import expect

from mha_core import Experiment, run
from mha_core.clinic import MISTAKES
from mha_core.clinic.exercise import plant
from tests.browser import parts

READY = partial(parts.wait_for_heading, title="Clinic")
SMALL = "embed_dim=21&num_heads=3&text=one+two+three+four+five"


def pick(page, box, label):
    """Choose an entry of a list."""
    field = page.get_by_role("combobox", name=box)
    field.click()
    page.get_by_role("option", name=label, exact=True).click()


def test_from_a_symptom_to_a_mistake_to_the_exercise(visit):
    page = visit(f"/Clinic?{SMALL}", ready=READY)
    pick(page, "What you see", "batch changes the result")
    expect(page.get_by_text("Mistake (of")).to_be_visible()
    parts.expect_query(
        page, embed_dim="21", num_heads="3", text="one two three four five", clinic_symptom="batch_changes"
    )
    pick(page, "Mistake (of", "Softmax over the batch")
    expect(page.get_by_text("- weights = torch.softmax(scores, dim=0)")).to_be_visible()
    expect(page.get_by_text("+ weights = torch.softmax(scores, dim=-1)")).to_be_visible()
    expect(page.get_by_text("it needs more than one sequence")).to_be_visible()
    parts.choose(page, "Clinic", "find a mistake")
    planted = plant(0, MISTAKES)
    answer = page.get_by_role("radio", name=MISTAKES[planted.planted].title, exact=True)
    expect(answer).to_be_visible()
    assert planted.planted not in page.url
    page.get_by_text(MISTAKES[planted.planted].title, exact=True).click()
    expect(page.get_by_text(f"Right: {MISTAKES[planted.planted].title}.")).to_be_visible()
    page.get_by_role("button", name="Another one").click()
    expect(page.get_by_role("radio", name=MISTAKES[plant(1, MISTAKES).planted].title, exact=True)).to_be_visible()
    expect(page.get_by_text(f"Right: {MISTAKES[planted.planted].title}.")).to_have_count(0)


def test_the_maps_tell_their_numbers(visit):
    page = visit(f"/Clinic?{SMALL}&clinic_mistake=softmax_over_queries", ready=READY)
    expect(parts.grid(page)).to_have_count(3)
    expect(parts.grid(page).nth(2)).to_have_attribute("data-painted", "1")
    scores = run(Experiment.from_query(SMALL)[0]).scores[0].double()
    difference = scores.softmax(-2) - scores.softmax(-1)
    parts.grid(page).nth(2).locator(".map").first.hover(position={"x": 2, "y": 2})
    told = parts.grid(page).nth(2).locator(".name .value").all_text_contents()
    assert np.allclose([float(text.replace("−", "-")) for text in told], difference[:, 0, 0], atol=1e-3)


def test_a_phone_needs_no_sideways_scrolling(visit):
    page = visit(f"/Clinic?{SMALL}", ready=READY, viewport={"width": 390, "height": 844}, has_touch=True)
    expect(parts.grid(page)).to_have_count(3)
    too_wide = page.locator('[data-testid="stMain"]').evaluate("main => main.scrollWidth - main.clientWidth")
    assert too_wide <= 0
