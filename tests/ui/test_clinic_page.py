"""Page Clinic: every mistake, the filter, the nearest experiment, the maps and the exercise."""

from __future__ import annotations

import numpy as np
from streamlit.testing.v1 import AppTest

from mha_core import run
from mha_core.clinic import MISTAKES, SYMPTOMS
from mha_core.clinic.exercise import plant
from tests.ui.page import GridMessage, fine, link, open_page, press, read_message, shown, texts, whole

CLINIC = "pages/7_Clinic.py"
SMALL = {"text": "one two three four five\nsix seven eight", "embed_dim": "21", "num_heads": "3"}
SMALL |= {"mask": "padding,causal"}
UNMASKED = {"text": "one two three four five", "embed_dim": "21", "num_heads": "3"}


def choose(page: AppTest, name: str, value: object) -> AppTest:
    """Give a field of the clinic a value; its fragment answers."""
    page.get_by_key(f"field_{name}").set_value(value)
    return fine(page.run())


def grids(page: AppTest) -> list[GridMessage]:
    """All head grids of a page, in their order."""
    found = [e.proto for e in page.get("bidi_component") if e.proto.component_name == "mha_lab_head_grid"]
    return [read_message(bytes(proto.bytes)) for proto in found]


def code(page: AppTest) -> str:
    return "\n".join(element.value for element in page.code)


def unsigned(lines: str) -> set[str]:
    """The lines of marked code without their marks."""
    return {line[2:] for line in lines.splitlines()}


def test_every_mistake_is_shown_with_both_sides() -> None:
    page = open_page(CLINIC, **SMALL)
    for name, mistake in MISTAKES.items():
        page = choose(page, "clinic_mistake", name)
        there = unsigned(code(page))
        assert {*mistake.wrong.splitlines(), *mistake.right.splitlines()} <= there, name
        assert "What changes" in texts(page)
        assert ("Error" in code(page)) == ("shape_error" in mistake.symptoms), name
        assert link(page).get("clinic_mistake", "split_by_view") == name


def test_only_lines_that_differ_are_marked() -> None:
    page = open_page(CLINIC, **SMALL, clinic_mistake="mask_after_softmax")
    wrong, right = (element.value.splitlines() for element in page.code[:2])
    assert [line[0] for line in wrong] == ["-", "-"]
    assert [line[0] for line in right] == ["+"]
    page = open_page(CLINIC, **SMALL, clinic_mistake="detached_weights")
    assert [line[0] for line in page.code[0].value.splitlines()] == ["-", " "]


def test_the_list_follows_the_symptom() -> None:
    page = open_page(CLINIC, **SMALL)
    for symptom in SYMPTOMS:
        page = choose(page, "clinic_symptom", symptom)
        offered = page.get_by_key("field_clinic_mistake").options
        assert offered == [mistake.title for mistake in MISTAKES.values() if symptom in mistake.symptoms]
    assert link(page)["clinic_symptom"] == symptom


def test_maps_and_difference_are_those_of_numbers_made_here() -> None:
    page = open_page(CLINIC, **UNMASKED, clinic_mistake="softmax_over_queries")
    wrong, right, change = grids(page)
    scores = run(shown(page)).scores[0].double()
    for message, wanted in ((wrong, scores.softmax(-2)), (right, scores.softmax(-1))):
        assert np.abs(message.values() - wanted.numpy()).max() <= message.tolerance().max()
    difference = (scores.softmax(-2) - scores.softmax(-1)).numpy()
    assert np.abs(change.values() - difference).max() <= change.tolerance().max()
    assert f"Weights differ by up to {np.abs(difference).max():.3g}" in texts(page).replace("\\", "")
    sums = page.dataframe[0].value.set_index("number").loc["smallest row sum"]
    assert abs(sums["wrong"] - scores.softmax(-2).sum(-1).min().item()) < 1e-5
    assert abs(sums["right"] - 1) < 1e-5


def test_a_button_goes_to_the_nearest_experiment() -> None:
    page = open_page(CLINIC, **UNMASKED, clinic_mistake="anti_causal")
    assert "a causal mask" in texts(page)
    page = whole(press(page, "use_nearest"))
    assert shown(page).mask.kinds == ("causal",)
    assert "a causal mask" not in texts(page)


def test_the_exercise_names_nothing_before_the_answer() -> None:
    seed = 4
    planted = plant(seed, MISTAKES)
    page = open_page(CLINIC, **SMALL, clinic_view="exercise", clinic_seed=str(seed))
    truth = MISTAKES[planted.planted]
    said = "\n".join([texts(page), code(page), *link(page).values()])
    assert truth.name not in said
    assert truth.title not in said.replace("\\", "")
    assert not {*truth.wrong.splitlines()} & {*said.splitlines()}
    radio = page.radio(key="field_clinic_guess")
    assert radio.value is None
    wrong = next(place for place in range(5) if place != planted.answer) + 1
    page = choose(page, "clinic_guess", wrong)
    assert "Not “" in page.error[0].value
    page = choose(whole(page), "clinic_guess", planted.answer + 1)
    assert page.success[0].value.replace("\\", "") == f"Right: {truth.title}."
    assert {*truth.wrong.splitlines()} <= unsigned(code(page))
    assert planted.planted not in "".join(link(page).values())


def test_probes_show_what_moves_and_another_exercise_forgets_the_guess() -> None:
    seed = next(seed for seed in range(99) if plant(seed, MISTAKES).planted == "softmax_over_batch")
    page = open_page(CLINIC, **SMALL, clinic_view="exercise", clinic_seed=str(seed), clinic_probe="sequence")
    moved = grids(page)[-1]
    assert moved.levels.shape[1:] == (2, 5)
    assert moved.values()[0, 0].max() > 0.01, "the first sequence moves with the last one"
    page = whole(press(page, "another"))
    assert link(page)["clinic_seed"] == str(seed + 1)
    assert "clinic_guess" not in link(page)
    assert "clinic_probe" not in link(page)
