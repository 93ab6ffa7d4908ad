"""The tools the checks share: movement of rows, replaced tokens, copies that are awake, lengths a module takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mha_core.doctor.probes.influence import NOISE, Probe, awake, depends, influence, movement, redrawn, replaced
from mha_core.doctor.probes.lengths import is_deliberate, length_failure, usable_lengths
from mha_core.doctor.subject import ModuleFailure, examine
from tests.doctor.value_layers import EMBED, Crossing, Sound


def test_movement_is_relative_to_the_largest_number() -> None:
    before = torch.tensor([[[1.0, -4.0], [2.0, 0.0]]])
    after = torch.tensor([[[1.0, -4.0], [2.0, 1.0]]])
    assert movement(before, after).tolist() == [[0.0, 0.25]]


@pytest.mark.parametrize(
    ("old", "new", "moved"), [("nan", "nan", 0.0), ("nan", 1.0, torch.inf), (1.0, "nan", torch.inf)]
)
def test_nan_that_stays_is_no_movement(old: float | str, new: float | str, moved: float) -> None:
    before, after = torch.tensor([[[float(old)], [3.0]]]), torch.tensor([[[float(new)], [3.0]]])
    assert movement(before, after).tolist() == [[moved, 0.0]]


def test_a_replaced_token_keeps_one_object_one() -> None:
    inputs = examine(Sound()).inputs(2, 5)
    changed = replaced(inputs, redrawn(inputs), "tokens", 1, 3)
    assert changed.key is changed.query
    assert changed.value is changed.query
    assert (changed.query != inputs.query).any(-1).nonzero().tolist() == [[1, 3]]


def test_the_memory_is_replaced_without_the_query() -> None:
    subject = examine(Crossing())
    inputs = subject.inputs(2, 5, 7)
    changed = replaced(inputs, redrawn(inputs), "memory", 0, 6)
    assert changed.query is inputs.query
    assert (changed.key != inputs.key).any(-1).nonzero().tolist() == [[0, 6]]


def test_influence_of_a_layer_that_copies_its_neighbour() -> None:
    class Neighbour(nn.Module):
        embed_dim = EMBED

        def forward(self, x: Tensor) -> Tensor:
            return x.roll(1, dims=1)

    subject = examine(Neighbour(), embed_dim=EMBED)
    moved = influence(Probe(subject), subject.inputs(2, 5), "tokens") > NOISE  # (tokens, B, outputs)
    assert moved[:, 0].nonzero().tolist() == [[token, (token + 1) % 5] for token in range(5)]
    assert not moved[:, 1].any()


def test_scores_far_apart_do_not_hide_a_dependence() -> None:
    class Sharp(Sound):
        def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            return (scores * 200.0).softmax(-1)

    subject = examine(Sharp())
    once = influence(Probe(subject), subject.inputs(2, 7), "tokens")[:, 0] > NOISE
    assert not once.all()
    assert depends(Probe(subject), lambda seed: subject.inputs(2, 7, seed=seed)).all()


def test_zero_gates_are_opened_and_positions_are_left_alone() -> None:
    class Gated(Sound):
        def __init__(self) -> None:
            super().__init__()
            nn.init.zeros_(self.out_proj.weight)
            self.gate = nn.Parameter(torch.zeros(1))
            self.position_table = nn.Parameter(torch.zeros(4, EMBED))

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return x + self.gate * super().forward(x)

    module = Gated()
    copy = awake(examine(module))
    assert copy.out_proj.weight.abs().max() > 0
    assert copy.gate.item() == 0.5
    assert not copy.position_table.any()
    assert not module.out_proj.weight.any()


def test_lengths_that_crash_are_left_out() -> None:
    class AtMostEight(Sound):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + torch.zeros(8, EMBED)[: x.shape[1]])

    subject = examine(AtMostEight())
    assert usable_lengths(subject, (5, 12, 8, 9)) == (5, 8)
    failure = length_failure(subject, 12)
    assert isinstance(failure, ModuleFailure)
    assert not is_deliberate(failure)


def test_a_refusal_on_purpose_is_told_from_a_crash() -> None:
    class Refuses(Sound):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            if x.shape[1] > 13:
                raise ValueError("at most 13 tokens")
            return super().forward(x)

    failure = length_failure(examine(Refuses()), 14)
    assert isinstance(failure, ModuleFailure)
    assert is_deliberate(failure)
