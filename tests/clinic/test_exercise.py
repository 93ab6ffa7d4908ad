"""The exercise: its answer follows from the seed, hides among plausible candidates, and can be any breaking mistake."""

from __future__ import annotations

from mha_core.clinic import MISTAKES
from mha_core.clinic.exercise import plant

SEEDS = range(700)
BREAKING = {name for name, mistake in MISTAKES.items() if not {*mistake.steps} <= {"read", "report"}}


def test_a_seed_plants_one_of_five() -> None:
    for seed in SEEDS:
        planted = plant(seed, MISTAKES)
        assert len({*planted.candidates}) == 5
        assert planted.candidates[planted.answer] == planted.planted
        assert planted == plant(seed, MISTAKES)


def test_every_breaking_mistake_is_planted_and_no_other() -> None:
    assert {plant(seed, MISTAKES).planted for seed in SEEDS} == BREAKING


def test_the_answer_is_not_told_by_its_place() -> None:
    places = [plant(seed, MISTAKES).answer for seed in SEEDS]
    assert all(100 < places.count(place) < 180 for place in range(5))


def test_candidates_are_plausible() -> None:
    """Most share a symptom or a step with the planted one, so that neither alone gives it away."""
    alike = 0
    for seed in SEEDS:
        planted = plant(seed, MISTAKES)
        truth = MISTAKES[planted.planted]
        others = [MISTAKES[name] for name in planted.candidates if name != planted.planted]
        alike += sum(bool({*truth.symptoms, *truth.steps} & {*other.symptoms, *other.steps}) for other in others)
    assert alike >= 0.95 * 4 * len(SEEDS)
