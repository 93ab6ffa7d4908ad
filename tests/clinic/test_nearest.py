"""Where an experiment cannot show a mistake: the nearest one that does, and what stays as it was chosen."""

from __future__ import annotations

import pytest
import torch

from mha_core import Experiment, run
from mha_core.clinic import MISTAKES
from mha_core.clinic.case import case_of
from mha_core.clinic.nearest import nearest
from mha_core.clinic.recipe import recipe, run_lines
from mha_core.experiment import precision

CHOSEN = {"text": "one two three four five", "embed_dim": 65, "num_heads": 5, "seed": 11}
HOSTILE = {
    "one head": {"num_heads": 1, "embed_dim": 13},
    "one token": {"text": "hi"},
    "one number": {"embed_dim": 1, "num_heads": 1, "text": "a b"},
    "fused": {"kernel": "sdpa", "mask": ("local",), "embed_dim": 34, "num_heads": 2},
    "custom": {"text": "a b c", "mask": ("custom",), "custom_mask": ("101", "011", "111"), "embed_dim": 34}
    | {"num_heads": 2},
    "constant": {"source": "random", "distribution": "constant", "q_len": 5, "embed_dim": 34, "num_heads": 2},
    "infinite fill": {"text": "a b c\nd", "mask": ("causal", "padding"), "fill": "-inf", "embed_dim": 34}
    | {"num_heads": 2},
    "two texts": {"text": "a b c\nd e", "memory_text": "x y z w\nq", "mask": ("padding",), "embed_dim": 34}
    | {"num_heads": 2},
}


def test_an_experiment_that_shows_it_is_left_alone() -> None:
    chosen = Experiment.from_fields(CHOSEN)
    assert nearest(chosen, MISTAKES["split_by_view"].needs) == nearest(chosen, ())
    assert nearest(chosen, ()).experiment == chosen


def test_only_what_is_needed_changes() -> None:
    found = nearest(Experiment.from_fields(CHOSEN), MISTAKES["mask_repeated_head_major"].needs)
    assert {*found.changes} == {"text", "mask"}
    assert found.reasons
    there = Experiment.from_fields({**CHOSEN, **found.changes})
    assert there == found.experiment
    allowed = run(there).allowed
    assert 0 < int((~allowed).sum()) < allowed.numel()


@pytest.mark.parametrize("name", HOSTILE)
def test_every_mistake_finds_an_experiment(name: str) -> None:
    """No right side ever stops, whatever is chosen."""
    chosen = Experiment.from_fields(HOSTILE[name])
    for mistake in MISTAKES.values():
        found = nearest(chosen, mistake.needs)
        case = case_of(found.experiment)
        with torch.no_grad(), precision(found.experiment):
            ran = run_lines(case, recipe(case, mistake, "right"))
        assert ran.error is None, (mistake.name, ran.error)
        assert Experiment.from_fields({**chosen.to_fields(), **found.changes}) == found.experiment
