"""What is on the page: the head grid and the large map, on opening it and after each kind of change.

The pixels are read from the canvases themselves, and the numbers behind the large map are compared with those that the
core computes for the same link.
"""

import numpy as np
from playwright.sync_api import expect

from mha_core.experiment import Experiment, run
from tests.browser import parts
from ui.attention import COLOURS, STAGES

SENTENCE = "Bank notes float past the river bank"


def test_opens_with_eight_painted_maps_and_no_click(visit):
    page = visit("/")
    expect(parts.canvases(page)).to_have_count(8)
    for head, picture in enumerate(parts.pixels(page)):
        assert picture.shape == (11, 11, 4)
        assert (picture[..., 3] == 255).all(), f"head {head} hides cells and there is no mask"
        assert len(np.unique(picture.reshape(-1, 4), axis=0)) > 5, f"head {head} is painted in one colour"
    expect(parts.large_title(page)).to_contain_text("Head 0: weights,")
    parts.wait_until_idle(page)
    assert parts.query(page) == {}
    assert parts.grid(page).get_attribute("data-mounts") == "1"


def test_own_sentence_gives_its_words_and_a_link(visit):
    page = visit("/")
    box = page.get_by_role("textbox", name="Text, one sequence per line")
    box.fill(SENTENCE)
    box.press("Control+Enter")
    expect(parts.chips(page)).to_have_text(SENTENCE.split())
    parts.expect_query(page, text=SENTENCE)
    assert [picture.shape for picture in parts.pixels(page)] == [(7, 7, 4)] * 8
    expect(parts.large_labels(page)).to_have_text(SENTENCE.split())


def test_heads_follow_the_slider_without_a_new_grid(visit):
    page = visit("/?embed_dim=420&num_heads=7")  # divisible by 4, 5, 6 and 7
    parts.mark(page)
    parts.type_number(page, "Seed", 1)  # fragment or not, the sidebar goes on working after another change
    for presses, heads in ((-1, 6), (-2, 4), (1, 5)):
        parts.slide_heads(page, presses)
        expect(parts.canvases(page)).to_have_count(heads)
        parts.expect_query(page, embed_dim="420", num_heads=str(heads), seed="1")
    expect(parts.grid(page)).to_have_attribute("data-heads", "5")
    parts.expect_marked(page)


def test_causal_mask_clears_the_upper_triangle_and_gives_the_numbers_of_the_core(visit):
    link = "num_heads=4&embed_dim=64&init=kaiming_uniform&seed=7"
    page = visit(f"/?{link}&head=2")
    parts.mark(page)
    parts.press_mask(page, "causal")
    expect(parts.grid(page).locator(".legend")).to_contain_text("hidden by the mask")
    later = np.triu(np.ones((11, 11), bool), 1)
    pictures = parts.pixels(page)
    assert len(pictures) == 4
    for picture in pictures:
        assert (picture[later] == 0).all()
        assert (picture[~later][:, 3] == 255).all()
    parts.wait_until_idle(page)
    expect(parts.large_title(page)).to_contain_text("Head 2: weights,")
    result = run(Experiment.from_query(f"{link}&mask=causal")[0])
    expected = result.weights[0, 2].masked_fill(~result.allowed[0, 2], np.nan).numpy()
    for row in (0, 6, 10):
        np.testing.assert_allclose(parts.large_row(page, row, 11), expected[row], rtol=1e-4)
    (picture,) = parts.large_pixels(page)
    assert (picture[later] == 0).all()
    assert (picture[~later][:, 3] == 255).all()
    assert parts.query(page)["mask"] == "causal"
    parts.expect_marked(page)


def test_another_stage_and_other_colours_change_every_map(visit):
    page = visit("/")
    parts.mark(page)
    before = parts.pixels(page)
    parts.choose(page, "Colours", COLOURS["head"])
    own = parts.expect_other_pixels(page, before)
    viridis_ends = {(68, 1, 84), (253, 231, 37)}
    for picture in own:
        assert viridis_ends <= {tuple(colour) for colour in picture.reshape(-1, 4)[:, :3].tolist()}
    parts.choose(page, "Stage", STAGES["scores"])
    parts.expect_query(page, colour="head", stage="scores")
    parts.expect_other_pixels(page, own)
    expect(parts.large_title(page)).to_contain_text(f"Head 0: {STAGES['scores']},")
    parts.expect_marked(page)


def test_long_input_is_pooled_and_says_so(visit):
    page = visit("/?source=random&batch=1&q_len=700")
    parts.mark(page)
    expect(page.get_by_text("Pooled: a cell is", exact=False)).to_be_visible()
    rows, columns, _ = parts.pixels(page)[0].shape
    assert rows == columns < 256
    peak = parts.pixels(page)
    parts.choose(page, "A pooled cell keeps", "the mean")
    parts.expect_other_pixels(page, peak)
    parts.expect_query(page, source="random", batch="1", q_len="700", pooling="mean")
    parts.expect_marked(page)


def test_a_region_of_the_large_map_is_seen_alone_and_all_of_it_again(visit):
    page = visit("/")
    parts.wait_until_idle(page)
    whole = parts.large_pixels(page)[0]
    area = page.locator(".large-map .map")
    box = area.bounding_box()
    cell = box["width"] / 11, box["height"] / 11
    page.mouse.move(box["x"] + 2.5 * cell[0], box["y"] + 3.5 * cell[1])
    page.mouse.down()
    page.mouse.move(box["x"] + 6.5 * cell[0], box["y"] + 8.5 * cell[1])
    page.mouse.up()
    words = page.locator(".large-map .rows span")
    expect(words).to_have_count(6)
    assert (parts.large_pixels(page)[0] == whole[3:9, 2:7]).all()
    assert parts.point_at(page, 0, 0).startswith("query “cross” → key “didn't”: weights 0.")
    area.dblclick()
    expect(words).to_have_count(11)
    assert (parts.large_pixels(page)[0] == whole).all()
