"""Depth: norms against a stack written out with torch's own modules, and the regions of the phase diagram by hand."""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha_core import AttentionConfig, Experiment, InitSpec, MaskSpec, MhaError, RandomSource, TextSource
from mha_core.experiment import give
from mha_core.init_schemes import generator_for
from mha_core.lenses.depth import ARRANGEMENTS, Arrangement, PhaseCell, PhasePlan, profile, region, sweep

SMALL = Experiment(RandomSource(2, 7), AttentionConfig(15, 3), MaskSpec(("causal",)), seed=11)


def one_layer(experiment: Experiment, arrangement: Arrangement) -> tuple[float, float]:
    """Norms at the input and of the weights for a stack of one layer, by nn.MultiheadAttention and autograd."""
    given, config = give(experiment), experiment.attention
    weights = given.layer.weights()
    peer = nn.MultiheadAttention(config.embed_dim, config.num_heads, batch_first=True).double()
    shrink = 1 / math.sqrt(2) if arrangement.scaled else 1.0
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([weights.q, weights.k, weights.v]))
        peer.out_proj.weight.copy_(weights.out * shrink)
    x = given.inputs.query.double().requires_grad_()
    inside = F.layer_norm(x, x.shape[-1:]) if arrangement.norm == "pre" else x
    length = x.shape[1]
    hidden = torch.ones(length, length).triu(1).bool()
    output = peer(inside, inside, inside, attn_mask=hidden)[0]
    output = x + output if arrangement.residual else output
    output = F.layer_norm(output, x.shape[-1:]) if arrangement.norm == "post" else output
    direction = torch.randn(output.shape, generator=generator_for(experiment.seed, "direction"), dtype=torch.float64)
    (output * direction / direction.norm()).sum().backward()
    squares = sum(parameter.grad.square().sum() for parameter in peer.parameters())
    return x.grad.norm().item(), math.sqrt(squares)


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_one_layer_equals_torchs_module(name: str) -> None:
    (found,) = profile(SMALL, 1, ARRANGEMENTS[name])
    at_input, of_weights = one_layer(SMALL, ARRANGEMENTS[name])
    assert found.input_gradient == pytest.approx(at_input, rel=1e-5)
    assert found.weight_gradient == pytest.approx(of_weights, rel=1e-5)
    exact = give(SMALL).inputs.query.double()
    assert found.activation_rms == pytest.approx(exact.square().mean().sqrt().item(), rel=1e-6)


def test_every_arrangement_is_there_once() -> None:
    assert len(set(ARRANGEMENTS.values())) == 2 * 3 * 2
    assert ARRANGEMENTS["residual + pre-norm"] == Arrangement(True, "pre")
    assert not [name for name in ARRANGEMENTS if "," in name], "a link separates names with commas"


def test_zero_layers_without_residual_let_nothing_through_and_with_residual_all() -> None:
    zero = replace(SMALL, init=InitSpec("zeros"))
    assert [layer.input_gradient for layer in profile(zero, 3, Arrangement())] == [0.0] * 3
    silent = replace(zero, attention=AttentionConfig(15, 3, bias=False))
    for layer in profile(silent, 5, Arrangement(residual=True)):
        assert layer.input_gradient == pytest.approx(1.0)
        assert layer.weight_gradient == 0.0


def test_identity_value_and_uniform_attention_by_hand() -> None:
    """q = k = 0 attends uniformly; v and out the identity: each layer replaces all tokens by their mean.

    The first layer's Jacobian is the averaging matrix, a projection, and so are all products of it.
    """
    uniform = Experiment(RandomSource(1, 7), AttentionConfig(6, 1, bias=False), seed=3)
    mixed = replace(uniform, init=InitSpec("zeros", targets=("q", "k")))
    (found,) = profile(mixed, 1, Arrangement())
    weights = give(mixed).layer.weights()
    through = (weights.out @ weights.v).double()
    direction = torch.randn(1, 7, 6, generator=generator_for(3, "direction"), dtype=torch.float64)
    direction /= direction.norm()
    expected = (direction.sum(1, keepdim=True) / 7 @ through).expand(1, 7, 6)
    assert found.input_gradient == pytest.approx(expected.norm().item(), rel=1e-6)


def test_layers_differ_and_repeat() -> None:
    first, again = profile(SMALL, 3, Arrangement()), profile(SMALL, 3, Arrangement())
    assert first == again
    assert len({layer.weight_gradient for layer in first}) == 3
    assert profile(replace(SMALL, seed=12), 3, Arrangement()) != first


def test_cross_attention_and_own_widths_become_self_attention() -> None:
    cross = Experiment(TextSource("a b c", "d e"), AttentionConfig(14, 2, kdim=5, vdim=3))
    assert len(profile(cross, 2, Arrangement(True, "pre"))) == 2


def test_a_stack_beyond_the_memory_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", "1000000")
    with pytest.raises(MhaError, match=r"64 layers of width 512 need [\d,]+ bytes") as caught:
        profile(Experiment(), 64, Arrangement())
    assert caught.value.try_
    with pytest.raises(MhaError, match="layers is 65"):
        profile(SMALL, 65, Arrangement())


@pytest.mark.parametrize(
    ("ratio", "named"),
    [
        (0.0, "dead"),
        (9e-4, "vanishing"),
        (2e-3, "healthy"),
        (900.0, "healthy"),
        (2e3, "exploding"),
        (math.inf, "exploding"),
        (math.nan, "exploding"),
    ],
)
def test_regions(ratio: float, named: str) -> None:
    assert region(ratio) == named
    cell = PhaseCell(1.0, 2, 6, ratio)
    assert cell.region == named
    if 0 < ratio < math.inf:
        assert cell.log10_ratio == pytest.approx(math.log10(ratio))
    assert PhaseCell(1.0, 2, 6, 0.0).log10_ratio == -math.inf
    assert PhaseCell(1.0, 2, 6, math.nan).log10_ratio == math.inf


def test_a_larger_gain_goes_from_vanishing_to_exploding() -> None:
    """v and out alone carry the gain g through the averaging stack: the gradient grows with g² per layer."""
    base = replace(SMALL, mask=MaskSpec(), init=InitSpec("xavier_uniform", targets=("v", "out")))
    plan = PhasePlan(base, (0.1, 1.0, 10.0), (3,), (15,))
    small, middle, large = (cell.ratio for cell in sorted(sweep(plan), key=lambda cell: cell.gain))
    assert small < middle < large
    plan = replace(plan, experiment=replace(base, attention=AttentionConfig(15, 3, scale=0.0)))  # weights stay uniform
    small, middle, large = (cell.ratio for cell in sorted(sweep(plan), key=lambda cell: cell.gain))
    assert middle / small == pytest.approx(10.0 ** (2 * 3), rel=1e-6)
    assert large / middle == pytest.approx(10.0 ** (2 * 3), rel=1e-6)


def cells(found: object) -> set[tuple[float, int, int, float]]:
    return {(c.gain, c.layers, c.embed_dim, c.ratio) for c in found}  # type: ignore[attr-defined]


def test_any_executor_gives_the_same_cells() -> None:
    plan = PhasePlan(SMALL, (0.5, 2.0), (1, 3), (15, 21))
    local = cells(sweep(plan))
    assert len(local) == plan.total == 8
    with ThreadPoolExecutor(2) as threads:
        assert cells(sweep(plan, threads)) == local
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert cells(sweep(plan, processes)) == local


def test_whoever_stops_asking_stops_the_work() -> None:
    class OnlyTheFirst(Executor):
        """Does the first cell and lets all others wait."""

        def __init__(self) -> None:
            self.futures: list[Future[PhaseCell]] = []

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == 1:
                self.futures[0].set_result(fn(*args, **kwargs))
            return self.futures[-1]

    executor = OnlyTheFirst()
    found = sweep(PhasePlan(SMALL, (0.5, 1.0, 2.0), (1, 2), (15,)), executor)
    assert next(found).gain == 0.5
    assert not any(future.cancelled() for future in executor.futures)
    found.close()
    assert [future.cancelled() for future in executor.futures] == [False] + [True] * 5
