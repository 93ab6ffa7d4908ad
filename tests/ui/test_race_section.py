"""The training race on page Gradients: its controls, curves, verdicts and replay, against a race run here."""

from __future__ import annotations

import time

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from mha_core.lenses.training import Point, Progress, Track, race, tracks
from mha_core.lenses.training_model import RaceSetting
from tests.ui.page import decode, figures, fine, link, open_page, press, read_message, set_widget, texts
from ui import training_figures

GRADIENTS = "pages/3_Gradients.py"
SMALL = {"race_length": "5", "race_vocab": "7", "race_width": "6", "race_heads": "3", "race_batch": "11"}
QUICK = SMALL | {"lab": "race", "race_steps": "4", "race_schemes": "xavier_uniform,zeros", "seed": "3"}
SETTING = RaceSetting(length=5, vocab=7, embed_dim=6, num_heads=3, batch=11, steps=4, seed=3)
PATIENCE_S = 40


def raced(page: AppTest) -> AppTest:
    """The page when its race is over."""
    end = time.monotonic() + PATIENCE_S
    while any(button.key == "cancel_race" for button in fine(page.run()).button):
        assert time.monotonic() < end, "the race did not end"
        time.sleep(0.05)
    return page


def shown_maps(page: AppTest) -> list[np.ndarray]:
    """The head maps of every racer, read back: (H, S, S) each, NaN where hidden."""
    sent = [e.proto.bytes for e in page.get("bidi_component") if e.proto.component_name == "mha_lab_head_grid"]
    return [read_message(bytes(content)).values() for content in sent]


@pytest.fixture(scope="module")
def done() -> AppTest:
    return raced(press(open_page(GRADIENTS, **QUICK), "race_start"))


@pytest.fixture(scope="module")
def expected() -> tuple[Track, ...]:
    return tracks(race(SETTING, ["xavier_uniform", "zeros"]))


def test_nothing_is_trained_before_it_is_asked_for():
    page = open_page(GRADIENTS, **QUICK)
    assert not figures(page)
    assert "After the separator, repeat the sequence." in texts(page).replace("\\", "")
    assert not page.button(key="race_start").disabled


def test_the_curves_are_those_of_the_race(done, expected):
    loss, accuracy, gradient = figures(done)
    for place, track in enumerate(expected):
        assert loss["data"][place]["name"] == track.racer.replace("_", " ")
        assert np.allclose(loss["data"][place]["y"], [point.loss for point in track.points], rtol=1e-6)
        assert list(loss["data"][place]["x"]) == [1, 2, 3, 4]
        assert np.allclose(accuracy["data"][place]["y"], [100 * stop.accuracy for stop in track.stops], rtol=1e-6)
        norms = [np.sqrt(sum(norm**2 for layer in point.gradients for norm in layer)) for point in track.points]
        assert np.allclose(gradient["data"][place]["customdata"], norms, rtol=1e-6)
    assert "14.3%" in accuracy["layout"]["annotations"][0]["text"]  # 1 of 7 letters


def test_every_racer_gets_its_row_and_its_reason(done, expected):
    (table,) = (frame.value for frame in done.dataframe)
    assert list(table["scheme"]) == ["xavier uniform", "zeros"]
    assert list(table["verdict"]) == ["not there yet", "gradient exactly 0"]
    assert np.allclose(table["accuracy, %"], [100 * track.accuracy for track in expected])
    assert list(table["steps to 95 %"]) == ["not reached"] * 2
    said = texts(done).replace("\\", "")
    assert "All four attention matrices had a gradient of exactly 0 at each of 4 steps." in said
    assert "At step 1 all four matrices had a gradient" in said


def test_the_slider_replays_the_maps(expected):
    page = raced(press(open_page(GRADIENTS, **QUICK), "race_start"))
    for step in (4, 0, 2):
        if step != 4:
            set_widget(page, "race_step", step)
            page = fine(page.run())
        for track, maps in zip(expected, shown_maps(page), strict=True):
            wanted = next(stop for stop in track.stops if stop.step == step).maps[0]
            assert np.isnan(maps[:, ~np.tril(np.ones((10, 10), dtype=bool))]).all()
            assert np.allclose(np.nan_to_num(maps), wanted, atol=0.003)
        assert f"step {step}: " in texts(page)
    assert link(page)["race_step"] == "2"


def test_a_race_ages_when_the_choices_change():
    page = raced(press(open_page(GRADIENTS, **QUICK), "race_start"))
    assert "have changed since" not in texts(page)
    set_widget(page, "race_heads", 2)
    assert "The choices above have changed since this race." in texts(fine(page.run()))


def test_one_matrix_may_be_looked_at_alone(expected):
    page = raced(press(open_page(GRADIENTS, **QUICK | {"race_matrix": "v"}), "race_start"))
    line = figures(page)[2]["data"][0]
    assert np.allclose(line["customdata"], [point.gradients[0][2] for point in expected[0].points], rtol=1e-6)


def test_a_long_race_can_be_stopped():
    page = press(open_page(GRADIENTS, **QUICK | {"race_steps": "3000"}), "race_start")
    page = raced(press(page, "cancel_race"))
    assert "Stopped after" in texts(page)
    assert "of 52" in texts(page)


def test_too_much_work_is_refused_with_choices_that_work():
    much = {"race_steps": "3000", "race_batch": "256", "race_width": "128", "race_length": "16", "race_layers": "2"}
    page = open_page(GRADIENTS, lab="race", **much)
    assert "this race needs about" in texts(page).replace("\\", "")
    assert page.button(key="race_start").disabled
    page = press(page, "race_try_0")
    assert int(link(page)["race_steps"]) < 3000
    assert not fine(page.run()).button(key="race_start").disabled


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"race_heads": "5"}, "embed_dim 32 is not divisible by num_heads 5"),
        ({"race_schemes": "none"}, "one to 6 different schemes"),
        ({"race_task": "induction", "race_vocab": "5"}, "induction needs 8 different tokens"),
    ],
)
def test_what_makes_no_race_says_why(choice, words):
    page = open_page(GRADIENTS, lab="race", **choice)
    assert words in texts(page).replace("\\", "")
    assert page.button(key="race_start").disabled


def test_exact_zeros_stand_below_the_smallest_norm():
    points = [Point(n, 1.0, 0.5, ((norm,) * 4,), 1.0) for n, norm in enumerate((0.0, 0.002, 0.5), 1)]
    stop = Progress("zeros", 3, tuple(points), 0.5, np.zeros((1, 1, 2, 2), dtype=np.float32), ((0.0,) * 4,), (0,))
    figure = decode(training_figures.gradient([Track("zeros", (stop,))], 3, ("q",)).to_plotly_json())
    (line,) = figure["data"]
    axis = figure["layout"]["yaxis"]
    assert np.allclose(line["customdata"], [0, 0.002, 0.5])
    assert np.allclose(line["y"][1:], [0.002, 0.5])
    assert (axis["ticktext"][0], axis["tickvals"][0]) == ("0", pytest.approx(line["y"][0], rel=1e-6))
    assert 10 ** axis["range"][0] < line["y"][0] < 0.001
