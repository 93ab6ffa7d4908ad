"""Every mistake fails a property that its cure has, on several experiments; the registry as a whole."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache

import pytest
import torch

from mha_core import Experiment, run
from mha_core.clinic import KINDS, MISTAKES, SYMPTOMS
from mha_core.clinic.case import case_of
from mha_core.clinic.compare import Comparison, compare
from mha_core.clinic.needs import NEEDS
from mha_core.clinic.outcome import look
from mha_core.clinic.recipe import STEPS
from mha_core.doctor.report import CHECK_IDS
from tests.clinic.properties import NOT_PLAIN, PROPERTIES, RIGHT_OUTPUT, WHOLE, Asked

EXPERIMENTS = {
    "padded": {"text": "one two three four five\nsix seven eight", "embed_dim": 35, "num_heads": 5, "seed": 3}
    | {"mask": ("padding", "causal")},
    "random": {"source": "random", "batch": 3, "q_len": 7, "embed_dim": 33, "num_heads": 3, "seed": 5, "bias": False},
    "cross": {"source": "random", "batch": 2, "q_len": 5, "k_len": 11, "embed_dim": 26, "num_heads": 2, "seed": 7}
    | {"mask": ("causal",), "init_bias": "torch_default"},
    "grouped": {"text": "a b c d e f g", "embed_dim": 42, "num_heads": 6, "num_kv_heads": 2, "head_size": 10}
    | {"positions": "rotary", "kdim": 42},
}


def experiment_of(name: str) -> Experiment:
    return Experiment.from_fields(EXPERIMENTS[name])


@pytest.fixture(scope="module", params=list(EXPERIMENTS))
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return experiment_of(request.param)


@cache
def compared_on(fields: str, name: str) -> Comparison:
    return compare(Experiment.from_json(fields), MISTAKES[name])


def sides(compared: Comparison) -> tuple[Asked, Asked]:
    there = compared.nearest.experiment
    return Asked(compared.wrong, there, compared), Asked(compared.right, there, compared)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_wrong_side_lacks_what_the_right_side_has(experiment: Experiment, name: str) -> None:
    compared = compared_on(experiment.to_json(), name)
    wrong, right = sides(compared)
    has = PROPERTIES.get(name, WHOLE)
    assert has(right), compared.right.failure
    assert not has(wrong)
    if name not in NOT_PLAIN:
        assert WHOLE(right)
        assert WHOLE(wrong) == (name in RIGHT_OUTPUT)
    assert compared.sentences
    assert not compared.is_invisible


def test_the_plain_lines_are_the_layer(experiment: Experiment) -> None:
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12), ("bfloat16", 0.05)):
        chosen = replace(experiment, dtype=dtype)
        outcome, done = look(case_of(chosen))[0], run(chosen)
        assert outcome.output is not None
        assert torch.allclose(outcome.output, done.output.float(), atol=tolerance)
        assert outcome.maps is not None
        assert torch.allclose(outcome.maps, done.weights.float(), atol=tolerance)


def test_every_kind_and_symptom_is_there() -> None:
    assert len(MISTAKES) >= 32
    assert {mistake.kind for mistake in MISTAKES.values()} == {*KINDS}
    assert {symptom for mistake in MISTAKES.values() for symptom in mistake.symptoms} == {*SYMPTOMS}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_whole(name: str) -> None:
    mistake = MISTAKES[name]
    assert mistake.name == name
    assert mistake.symptoms
    assert {*mistake.symptoms} <= {*SYMPTOMS}
    assert {*mistake.steps} <= {*STEPS}
    assert {*mistake.needs} <= {*NEEDS}
    assert mistake.check is None or mistake.check in CHECK_IDS
    assert all((mistake.title, mistake.notice, mistake.fix, mistake.lesson))
    assert mistake.wrong != mistake.right
    for lines in (mistake.wrong, mistake.right):
        ast.parse(lines)


def test_titles_are_told_apart() -> None:
    assert len({mistake.title for mistake in MISTAKES.values()}) == len(MISTAKES)


def test_symptoms_are_what_happens() -> None:
    """An error is promised where, and only where, the lines raise one; so is NaN."""
    for name, mistake in MISTAKES.items():
        compared = compared_on(experiment_of("padded").to_json(), name)
        raises = compared.wrong.failure is not None
        assert raises == ("shape_error" in mistake.symptoms), name
        bad = any(norm != norm for norm in compared.wrong.gradients.values())
        assert not bad or "loss_nan" in mistake.symptoms, name
        assert compared.is_silent == (not raises and not bad), name
