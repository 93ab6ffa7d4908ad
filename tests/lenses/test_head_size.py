"""Lenses on heads of a width of their own: what assumed H·D = E and must not. E 13, H 6, Hkv 3, D 7, unless said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mha_core import Experiment, MhaError, run
from mha_core.lenses import roofline
from mha_core.lenses.bench_plan import needed_bytes, sizes_at
from mha_core.lenses.bench_reference import relative_tolerance
from mha_core.lenses.bench_variants import Variant, config_of
from mha_core.lenses.benchmark import agreement, latest, measure
from mha_core.lenses.broken_trace import trace_fields
from mha_core.lenses.cost import cost
from mha_core.lenses.cost_memory import groupings
from mha_core.lenses.depth import ARRANGEMENTS, PhasePlan, profile, sweep
from mha_core.lenses.init_effects import packed_against_blocks, scale_against_width
from mha_core.lenses.steps import why
from mha_core.lenses.trace import trace
from tests.lenses.reference import reference

UNTIED: dict[str, Any] = {"embed_dim": 13, "num_heads": 6, "num_kv_heads": 3, "head_size": 7}
RANDOM = {"source": "random", "batch": 2, "q_len": 5}


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields(RANDOM | UNTIED | fields)


def test_a_run_is_the_equation() -> None:
    result = run(experiment(mask=("causal",)))
    assert result.q.shape == (2, 6, 5, 7)
    expected = reference(result)
    torch.testing.assert_close(result.output.double(), torch.from_numpy(expected.output), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.weights.double(), torch.from_numpy(expected.weights), rtol=1e-5, atol=1e-5)


def test_words_hold_for_both() -> None:
    assert why("joined") == "The heads side by side: H·D channels, which is E unless heads have a width of their own."
    found = trace(experiment())
    assert (found.step("joined").symbolic, found.step("joined").shape) == (("B", "S", "H·D"), (2, 5, 42))
    assert (found.letters["E"], found.letters["D"]) == (13, 7)


@pytest.mark.parametrize(
    ("change", "failing", "last"),
    [
        ({"num_kv_heads": 4}, "scores", {"q_proj": (2, 5, 42), "k_proj": (2, 5, 28)}),
        ({"positions": "rotary"}, "q_rotated", {"q_proj": (2, 5, 42), "v_proj": (2, 5, 21)}),
        ({"kernel": "sdpa", "dropout": 0.5}, "context", {"q_heads": (2, 6, 5, 7), "k_shared": (2, 6, 5, 7)}),
    ],
)
def test_a_broken_trace_has_heads_of_that_width(change: dict[str, Any], failing: str, last: dict[str, Any]) -> None:
    found = trace_fields(RANDOM | UNTIED | change)
    assert found.failure is not None
    assert found.failure.step == failing
    assert {name: found.step(name).shape for name in last} == last
    assert found.step("q_proj").symbolic == ("B", "S", "H·D")
    assert found.letters["D"] == 7


def test_a_broken_trace_of_too_much_follows_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(2**16))
    found = trace_fields(RANDOM | UNTIED | {"head_size": 4099})
    assert found.failure is not None
    assert found.values("query") is None
    assert found.step("query").shape == (2, 5, 13)


def test_biases_are_added_to_the_step_they_belong_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key/value group and by hand: 2·B·S·E·H·D and a bias per output."""
    monkeypatch.setattr(roofline, "STEPS_S", 0.0)
    rows = {row.step: row.flops for row in roofline.time_steps(experiment(num_kv_heads=None))}
    assert rows["q projection"] == 2 * 2 * 5 * 13 * 42 + 2 * 5 * 42
    assert rows["output projection"] == 2 * 2 * 5 * 13 * 42 + 2 * 5 * 13


def test_parameters_of_every_grouping() -> None:
    expected = [2 * 13 * 42 + 2 * 13 * 7 * n + 42 + 14 * n + 13 for n in (1, 2, 3, 6)]
    assert [row.parameters for row in groupings(experiment())] == expected
    assert cost(experiment()).parameters == expected[2]


def test_one_head_of_the_same_matrices() -> None:
    one = Variant(one_head=True)
    assert config_of(one, experiment(num_kv_heads=None).attention).head_dim == 42
    assert config_of(one, Experiment.from_fields(RANDOM | {"embed_dim": 42, "num_heads": 6}).attention).head_dim == 42
    chosen = experiment(num_kv_heads=None)
    rows = {row.variant: row for row in latest(list(measure(agreement(chosen, ("float32",), ("forward",)))))}
    assert rows[one].agrees
    assert rows[Variant("raw SDPA", kernel="sdpa", need_weights=False)].agrees
    many, alone = (needed_bytes(v, chosen, sizes_at(chosen, None), "forward") for v in (Variant(), one))
    assert 0 < alone < many  # fewer score matrices, as many weights


def test_the_tolerance_knows_the_longest_sum() -> None:
    """Only rounding in float64 follows from the sums: it grows with √(H·D) where that is the longer one."""
    short, long = (relative_tolerance("float32", 0.0, channels) for channels in (13, 4 * 13))
    roundoff = 2.0**-24
    assert (long - 4 * roundoff) == pytest.approx(2 * (short - 4 * roundoff))


def test_the_same_heads_cut_ever_wider() -> None:
    """The matrices stay (H·D, E) = (48, 13): head widths that divide 48, not 13."""
    chosen = Experiment.from_fields(RANDOM | {"embed_dim": 13, "num_heads": 3, "head_size": 16})
    points = scale_against_width(chosen)
    assert [(point.head_dim, point.num_heads) for point in points] == [(1, 48), (2, 24), (4, 12), (8, 6), (16, 3)]
    for point in points:
        assert point.unscaled.score_variance == pytest.approx(point.head_dim * point.scaled.score_variance, rel=1e-9)


def test_no_more_heads_than_there_may_be() -> None:
    wide = Experiment.from_fields({"source": "random", "batch": 1, "q_len": 2, "embed_dim": 2048, "num_heads": 2})
    assert [point.num_heads for point in scale_against_width(wide)][:2] == [1024, 512]


def test_packed_xavier_by_hand() -> None:
    blocks, packed = packed_against_blocks(experiment())
    assert blocks.theory_std == pytest.approx((2 / (13 + 42)) ** 0.5)
    assert packed.theory_std == pytest.approx((2 / (13 + 42 + 2 * 21)) ** 0.5)


def test_a_stack_of_such_layers_and_of_other_widths() -> None:
    plain = next(iter(ARRANGEMENTS.values()))
    assert len(profile(experiment(), 3, plain)) == 3
    cells = list(sweep(PhasePlan(experiment(), (1.0,), (2,), (17, 29))))
    assert [cell.embed_dim for cell in cells] == [17, 29]


def test_advice_for_a_stack_too_large_shrinks_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(2**21))
    chosen = experiment(head_size=1009)
    with pytest.raises(MhaError) as caught:
        profile(chosen, 4, next(iter(ARRANGEMENTS.values())))
    changed = Experiment.from_fields(chosen.to_fields() | dict(caught.value.try_[0].changes))
    assert profile(changed, 4, next(iter(ARRANGEMENTS.values())))
