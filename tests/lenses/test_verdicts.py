"""Verdicts and their reasons against what autograd of an independent plain layer gives, for every subset of zeros."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core import Experiment
from mha_core.init_schemes import generator_for, initial_weights
from mha_core.lenses.verdicts import CAUSES, FAR, judged
from tests.lenses.plain_layer import plain_pass

SMALL: dict[str, Any] = {"text": "one two three four five six seven", "embed_dim": 30, "num_heads": 5}
SUBSETS = [s for size in range(5) for s in itertools.combinations(("q", "k", "v", "out"), size)]
NOISE = 1e-13  # of float64, relative to the gradient under Xavier


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields(SMALL | fields)


def expected_blame(zero: set[str], has_bias: bool) -> dict[str, set[str]]:
    """Which factors make each gradient zero, worked out by hand; a bias that is not zero keeps q, k, v from zero."""
    v_gone, alike_v = ("v" in zero and not has_bias), ("v" in zero and has_bias)
    k_gone, alike_k = ("k" in zero and not has_bias), ("k" in zero and has_bias)
    path = {"out"} & zero
    to_scores = path | ({"v"} if v_gone else set()) | ({"values alike"} if alike_v else set())
    return {
        "out": {"v in context"} if v_gone else set(),
        "v": path,
        "q": to_scores | ({"k"} if k_gone else set()) | ({"keys alike"} if alike_k else set()),
        "k": to_scores | ({"q"} if "q" in zero and not has_bias else set()),
    }


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", ["sum", "mse"])
def test_every_subset_of_zeros_has_its_reason(bias: bool, loss: str) -> None:
    for zero in SUBSETS:
        fields = {"init": "zeros", "init_targets": zero, "bias": bias, "init_bias": "torch_default", "dtype": "float64"}
        chosen = experiment(**fields)
        found = judged(chosen, loss)
        target = torch.randn(1, 7, 30, generator=generator_for(0, "loss", "target")).double()

        def plain_loss(output: Tensor, target: Tensor = target) -> Tensor:
            return output.sum() if loss == "sum" else (output - target).square().mean()

        plain = plain_pass(chosen, plain_loss)
        usual = plain_pass(experiment(**fields | {"init": "xavier_uniform"}), plain_loss)
        for name, factors in expected_blame(set(zero), bias).items():
            verdict, norm = found.parameters[name], plain.parameters[name][1].norm()
            scale = usual.parameters[name][1].norm()
            is_dead = bool(norm <= NOISE * scale)
            assert found.found.parameter[name].norm == pytest.approx(norm.item(), abs=float(NOISE * scale))
            assert is_dead == bool(factors), (zero, bias, name)
            assert set(verdict.factors) == factors, (zero, bias, name)
            assert (verdict.kind == "dead") == is_dead
            assert all(CAUSES[factor] in verdict.reason for factor in factors)
            if bias and name != "out":
                of_bias = found.parameters[f"{name}_bias"]
                assert of_bias.kind == ("by design" if name == "k" else verdict.kind)


@pytest.mark.parametrize(
    ("fields", "name", "factor"),
    [
        ({"text": "alone"}, "q", "one key"),
        ({"mask": ("custom",), "custom_mask": ("1000000",) * 7}, "k", "one key"),
        ({"mask": ("custom",), "custom_mask": ("0000000",) * 7}, "v", "mask"),
        ({"mask": ("custom",), "custom_mask": ("0000000",) * 7}, "out", "mask"),
        ({"mask": ("custom",), "custom_mask": ("0000000",) * 7, "fill": "-1e9"}, "q", "hidden"),
        ({"text": "same same same"}, "q", "values alike"),
        ({"scale": 0.0}, "k", "scale"),
        ({"gain": 1e4, "init_targets": ("q", "k")}, "q", "softmax"),
        ({"gain": 1e-3, "dtype": "float16"}, "q", "underflow"),
    ],
)
def test_other_dead_gradients_name_their_cause(fields: dict[str, Any], name: str, factor: str) -> None:
    verdict = judged(experiment(**fields), "mse").parameters[name]
    assert (verdict.kind, verdict.factors[0]) == ("dead", factor)
    assert verdict.is_alarming


def test_the_fused_kernel_still_tells_that_it_is_the_softmax() -> None:
    verdict = judged(experiment(gain=100.0, init_targets=("q", "k"), kernel="sdpa"), "mse").parameters["q"]
    assert (verdict.kind, verdict.factors) == ("vanishing", ("softmax",))


def test_a_loss_that_prefers_nothing_is_dead_everywhere() -> None:
    found = judged(experiment(text="same same same same"), "next_token")
    assert all(found.parameters[name].factors[0] == "loss" for name in ("q", "k", "v", "out", "out_bias"))


def test_dropout_tells_equal_values_apart() -> None:
    fields = {"init": "zeros", "init_targets": ("v",), "init_bias": "torch_default"}
    assert judged(experiment(**fields)).parameters["k"].kind == "dead"
    assert judged(experiment(**fields, dropout=0.4)).parameters["k"].kind != "dead"


def test_the_key_bias_is_fine_unless_positions_turn_it() -> None:
    verdict = judged(experiment()).parameters["k_bias"]
    assert verdict.kind == "by design"
    assert "that is fine" in verdict.reason
    assert not verdict.is_alarming
    assert judged(experiment(positions="rotary")).parameters["k_bias"].kind == "healthy"


@pytest.mark.parametrize(
    ("gain", "targets", "expected"),
    [
        (0.05, ("q", "k", "v", "out"), {"q": ("vanishing", {"v", "out", "k"}), "k": ("vanishing", {"v", "out", "q"})}),
        (0.001, ("out",), {"v": ("vanishing", {"out"}), "q": ("vanishing", {"out"}), "out": ("healthy", set())}),
        (0.001, ("v",), {"q": ("vanishing", {"v"}), "out": ("vanishing", {"context"}), "v": ("healthy", set())}),
        (0.001, ("q",), {"k": ("vanishing", {"q"}), "q": ("healthy", set())}),
        (1000.0, ("out",), {"v": ("exploding", {"out"}), "q": ("exploding", {"out"})}),
        (60.0, ("q", "k"), {"q": ("vanishing", {"softmax"}), "v": ("healthy", set())}),
    ],
)
def test_small_and_large_factors_are_named(
    gain: float, targets: tuple[str, ...], expected: dict[str, tuple[str, set[str]]]
) -> None:
    chosen = experiment(gain=gain, init_targets=targets, dtype="float64")
    found = judged(chosen, "sum")
    here, there = (
        plain_pass(e, torch.sum) for e in (chosen, experiment(dtype="float64"))
    )  # the sum's gradient does not depend on the output
    for name, (kind, factors) in expected.items():
        relative = (here.parameters[name][1].norm() / there.parameters[name][1].norm()).item()
        verdict = found.parameters[name]
        assert verdict.relative == pytest.approx(relative, rel=1e-6)
        assert kind == ("vanishing" if relative < 1 / FAR else "exploding" if relative > FAR else "healthy")
        assert (verdict.kind, set(verdict.factors)) == (kind, factors)
    if gain == 60.0:
        assert "The softmax saturates" in found.parameters["q"].reason


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"mask": ("custom",), "custom_mask": ("0000000", *("1111111",) * 6), "fill": "-inf"}, "weights"),
        ({"gain": 1e4, "dtype": "float16"}, "scores"),
    ],
)
def test_nan_and_inf_explode_and_name_the_first_tensor(fields: dict[str, Any], first: str) -> None:
    verdict = judged(experiment(**fields)).parameters["v"]
    assert verdict.kind == "exploding"
    assert verdict.reason.endswith(f"The first tensor that has one is {first}.")


class Plain(nn.Module):
    """Multi-head attention of plain torch layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        context = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
        return self.out(context.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("scheme", "identical"), [("constant", True), ("ones", True), ("zeros", True), ("normal", False)]
)
def test_heads_that_start_alike_stay_alike(scheme: str, identical: bool) -> None:
    chosen = experiment(init=scheme, init_std=0.05)
    assert judged(chosen).found.facts.identical_heads is identical
    drawn = initial_weights(chosen.attention, chosen.init, chosen.seed)
    layer = Plain(30, 5).double()
    with torch.no_grad():
        for name in ("q", "k", "v", "out"):
            getattr(layer, name).weight.copy_(getattr(drawn, name))
            getattr(layer, name).bias.zero_()
    rng = torch.Generator().manual_seed(11)
    x, target = (torch.randn(3, 7, 30, generator=rng, dtype=torch.float64) for _ in range(2))
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for _ in range(5):
        optimiser.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimiser.step()
    heads = [layer.q.weight.view(5, 6, 30), layer.v.weight.view(5, 6, 30), layer.out.weight.T.reshape(5, 6, 30)]
    apart = max((block - block[:1]).abs().max().item() for block in heads)
    assert (apart < 1e-12) is identical


def test_heads_are_not_identical_where_something_draws_them_apart() -> None:
    def identical(**fields: Any) -> bool:
        return judged(experiment(**{"init": "constant"} | fields)).found.facts.identical_heads

    assert identical(num_kv_heads=1)
    assert not identical(dropout=0.2)
    assert not identical(init_targets=("q", "k", "v"))
    assert not identical(init_bias="torch_default")
    assert not identical(num_heads=1)


def test_the_reference_is_the_same_experiment_under_xavier() -> None:
    chosen = experiment(init="orthogonal", gain=1.7, init_targets=("v",), init_bias="torch_default", mask=("causal",))
    found = judged(chosen, "mse")
    same = replace(chosen, init=replace(chosen.init, scheme="xavier_uniform", gain=1.0))
    for name, verdict in judged(same, "mse").parameters.items():
        if verdict.kind == "healthy":
            assert verdict.relative == 1
            ratio = found.found.parameter[name].norm / judged(same, "mse").found.parameter[name].norm
            assert found.parameters[name].relative == pytest.approx(ratio)
