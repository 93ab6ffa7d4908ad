"""What the 1/√D scale and a packed Xavier do: against numbers worked out here from the weights themselves."""

from __future__ import annotations

import math

import pytest
import torch

from mha_core import AttentionConfig, Experiment, InitSpec, MaskSpec, RandomSource
from mha_core.experiment import give
from mha_core.lenses.init_effects import (
    compare_targets,
    packed_against_blocks,
    scale_against_width,
    spread,
    target_scheme,
)


def test_without_a_scale_scores_are_sqrt_d_larger() -> None:
    for point in scale_against_width(Experiment(RandomSource(2, 11), AttentionConfig(48, 3))):
        assert point.head_dim * point.num_heads == 48
        assert point.unscaled.score_variance == pytest.approx(point.head_dim * point.scaled.score_variance, rel=1e-9)
        assert point.unscaled.relative_entropy <= point.scaled.relative_entropy + 1e-12
    assert [point.head_dim for point in scale_against_width(Experiment(attention=AttentionConfig(48, 3)))] == [
        1,
        2,
        4,
        8,
        16,
    ]


def test_variance_and_entropy_by_another_way() -> None:
    experiment = Experiment(RandomSource(2, 7), AttentionConfig(26, 2), MaskSpec(("causal",)), seed=5)
    given = give(experiment)
    x = given.inputs.query.double()
    with torch.no_grad():
        q, k = ((x @ w.T.double()).unflatten(-1, (2, 13)) for w in (given.layer.wq.weight, given.layer.wk.weight))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(13)
    found = spread(given)
    assert found.score_variance == pytest.approx(scores.var(correction=0).item(), rel=1e-5)
    entropies = []
    for row in range(1, 7):  # the first row has one key and no entropy to speak of
        weights = scores[..., row, : row + 1].softmax(-1)
        entropies.append(-(weights * weights.log()).sum(-1) / math.log(row + 1))
    assert found.relative_entropy == pytest.approx(torch.stack(entropies).mean().item(), rel=1e-5)


def test_uniform_weights_have_all_the_entropy_and_one_hot_ones_none() -> None:
    uniform = Experiment(RandomSource(1, 5), AttentionConfig(6, 2), init=InitSpec("zeros", targets=("q",)))
    assert spread(give(uniform)).relative_entropy == pytest.approx(1.0)
    assert spread(give(uniform)).score_variance == 0.0
    sharp = Experiment(RandomSource(1, 5), AttentionConfig(6, 2), init=InitSpec(gain=1e3))
    found = spread(give(sharp))
    assert found.relative_entropy < 0.01
    assert found.score_gradient < 1e-3  # saturated: nothing reaches q and k


def test_a_zero_k_gives_q_no_gradient_and_a_zero_q_gives_the_scores_one() -> None:
    """dL/dq = scale · dL/dscores · k."""
    no_key = Experiment(RandomSource(1, 5), AttentionConfig(6, 2), init=InitSpec("zeros", targets=("k",)))
    assert spread(give(no_key)).q_gradient == 0.0
    assert spread(give(no_key)).score_gradient > 0.0


@pytest.mark.parametrize(("kv_heads", "ratio"), [(None, 1 / math.sqrt(2)), (2, math.sqrt(2 * 96 / (96 + 96 + 2 * 32)))])
def test_packed_xavier_is_smaller(kv_heads: int | None, ratio: float) -> None:
    experiment = Experiment(RandomSource(1, 7), AttentionConfig(96, 6, num_kv_heads=kv_heads))
    per_block, packed = packed_against_blocks(experiment)
    assert packed.theory_std / per_block.theory_std == pytest.approx(ratio)
    for row in (per_block, packed):
        assert row.measured_std == pytest.approx(row.theory_std, rel=0.03)
    assert per_block.theory_std == pytest.approx(math.sqrt(2 / (96 + 96)))
    assert packed.spread.relative_entropy > per_block.spread.relative_entropy


def test_zeros_on_every_subset_by_the_chain_rule() -> None:
    """Without biases: out learns where context is not zero, v where out is not, q and k where all the others are not.

    With q = k = 0 the product q·k has no gradient on either side; with one of them zero the zero one still learns.
    """
    experiment = Experiment(RandomSource(2, 7), AttentionConfig(6, 2, bias=False), MaskSpec(("causal",)))
    rows = {frozenset(row.targets): row.result for row in compare_targets(experiment, "mse")}
    assert len(rows) == 16
    for zero, found in rows.items():
        moves = {name for name, norm in found.norms.items() if norm > 0}
        expected = {"out"} if "v" not in zero else set()
        if "out" not in zero:
            expected |= {"v"}
            if "v" not in zero:
                expected |= {"q"} if "k" not in zero else set()
                expected |= {"k"} if "q" not in zero else set()
        assert moves == expected, zero
        dead = {name for name, verdict in found.verdicts.items() if verdict.kind == "dead"}
        assert dead == {"q", "k", "v", "out"} - expected


def test_the_chosen_scheme_is_the_one_compared() -> None:
    assert target_scheme(Experiment()) == "zeros"
    assert target_scheme(Experiment(init=InitSpec("orthogonal"))) == "orthogonal"
    assert target_scheme(Experiment(init=InitSpec(gain=3.0))) == "xavier_uniform"
