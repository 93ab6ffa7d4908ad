"""All schemes side by side against what each matrix does, computed here in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mha_core import Experiment, run
from mha_core.init_schemes import INIT_SCHEMES
from mha_core.lenses.grad_schemes import SchemeRow, compare_schemes
from tests.lenses.plain_layer import plain_pass
from tests.lenses.reference import entropy

SMALL: dict[str, Any] = {"text": "one two three four five six seven", "embed_dim": 30, "num_heads": 5}


def rows(**fields: Any) -> dict[str, SchemeRow]:
    return {row.scheme: row for row in compare_schemes(Experiment.from_fields(SMALL | fields))}


@pytest.mark.parametrize(
    "fields", [{}, {"mask": ("causal",), "gain": 1.3, "init_targets": ("q", "v"), "init_std": 0.3}]
)
def test_every_scheme_has_its_numbers(fields: dict[str, Any]) -> None:
    found = rows(**fields, dtype="float64")
    assert list(found) == list(INIT_SCHEMES)
    for scheme, row in found.items():
        chosen = Experiment.from_fields(SMALL | fields | {"init": scheme, "dtype": "float64"})
        plain, weights = plain_pass(chosen, torch.sum), run(chosen).weights
        for name in ("q", "k", "v", "scores", "output"):
            assert row.stds[name] == pytest.approx(plain.tensors[name][0].std(correction=0).item(), rel=1e-8, abs=1e-12)
        for name in ("q", "k", "v", "out"):
            wanted = plain.parameters[name][1].norm().item()
            assert row.norms[name] == pytest.approx(wanted, rel=1e-7, abs=1e-9 * row.norms["out_bias"])
        entropies = [entropy(line) for line in weights.reshape(-1, 7).numpy()]
        assert row.entropy_nats == pytest.approx(sum(entropies) / len(entropies), rel=1e-9, abs=1e-12)
        assert row.loss_value == pytest.approx(plain.loss.item(), rel=1e-9, abs=1e-12)


def test_what_the_schemes_do() -> None:
    found = rows(embed_dim=512, num_heads=8)
    ill = {name: [row.verdicts[m].kind for m in "qkv"] for name, row in found.items()}
    assert ill.pop("ones")[2] == "exploding"  # dL/dcontext is the sum over all 512 outputs, not a mean of signs
    assert ill.pop("zeros") == ["dead", "dead", "dead"]
    assert all(kinds == ["healthy"] * 3 for kinds in ill.values())
    assert all(found["zeros"].verdicts[name].kind == "dead" for name in ("q", "k", "v", "out"))
    assert {name for name, row in found.items() if row.identical_heads} == {"ones", "constant", "zeros"}
    assert found["zeros"].entropy_nats == pytest.approx(math.log(7))
    assert found["zeros"].relative_entropy == pytest.approx(1)
    ratio = found["kaiming_normal"].stds["q"] / found["xavier_normal"].stds["q"]
    assert ratio == pytest.approx(
        math.sqrt(2), rel=1e-5
    )  # the same draws, variance 2/fan_in against 2/(fan_in+fan_out)
    assert found["xavier_uniform"].verdicts["v"].relative == 1


def test_targets_are_respected() -> None:
    found = rows(init_targets=("out",))
    assert len({row.stds["q"] for row in found.values()}) == 1
    assert found["zeros"].verdicts["q"].factors == ("out",)
    assert found["zeros"].verdicts["out"].kind == "healthy"


def test_the_fused_kernel_has_neither_scores_nor_entropy() -> None:
    row = rows(kernel="sdpa")["xavier_uniform"]
    assert "scores" not in row.stds
    assert row.entropy_nats is row.relative_entropy is None
    assert set(row.as_row()) >= {"scheme", "std_q", "norm_out", "verdict_k_bias", "identical_heads"}
