"""What a matrix resembles: against the registry's own draws, simulated sampling errors, and two trained models."""

from __future__ import annotations

import math

import pytest
import torch

from mha_core.init_schemes import INIT_SCHEMES, InitSpec, generator_for
from mha_core.lenses.checkpoint_init import (
    CUT_SHRINK,
    MOMENTS,
    Resemblance,
    _kurtosis_error,
    candidates,
    resemble,
)
from mha_core.lenses.checkpoint_stats import describe, measure
from tests.lenses.trained_layers import minilm, smollm2

NAMES = {
    "xavier_uniform": "Xavier uniform",
    "xavier_normal": "Xavier normal",
    "kaiming_uniform": "Kaiming uniform",
    "kaiming_normal": "Kaiming normal",
    "normal": "normal with std 0.02",
    "trunc_normal": "truncated normal with std 0.02",
    "torch_default": "torch's default",
    "orthogonal": "orthogonal",
    "identity": "the identity",
    "ones": "every value is 1",
    "constant": "every value is 0.02",
    "zeros": "all zeros",
}


def fresh(scheme: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    matrix = torch.empty(rows, columns)
    INIT_SCHEMES[scheme].fill(matrix, InitSpec(scheme), generator_for(seed, scheme))
    return matrix


def likeness(matrix: torch.Tensor, role: str = "q", packed_rows: int | None = None) -> Resemblance:
    return resemble(matrix, describe(role, role, matrix), packed_rows)


def test_every_scheme_of_the_registry_is_known() -> None:
    assert set(NAMES) == set(INIT_SCHEMES)


@pytest.mark.parametrize("scheme", INIT_SCHEMES)
@pytest.mark.parametrize("shape", [(67, 61), (211, 97), (37, 223)])
def test_a_fresh_matrix_is_named(scheme: str, shape: tuple[int, int]) -> None:
    found = likeness(fresh(scheme, *shape))
    assert NAMES[scheme] in found.sentence
    assert found.kind not in ("none", "unclear")


@pytest.mark.parametrize("shape", [(8, 8), (5, 64), (64, 8), (17, 131)])
def test_fresh_matrices_are_not_called_trained(shape: tuple[int, int]) -> None:
    """Of 320 draws at each size, at most one: the limits are 5 standard errors."""
    schemes = [name for name in NAMES if name not in ("identity", "ones", "constant", "zeros")]
    found = [likeness(fresh(scheme, *shape, seed)).kind for scheme in schemes for seed in range(40)]
    assert found.count("none") <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_changes_no_answer(dtype: torch.dtype) -> None:
    for scheme in ("xavier_uniform", "kaiming_normal", "orthogonal", "normal", "zeros", "identity"):
        assert NAMES[scheme] in likeness(fresh(scheme, 131, 127).to(dtype)).sentence


def test_no_trained_matrix_is_called_fresh() -> None:
    layers = [*minilm()[::2], *smollm2(0, 14, 29)]
    found = [likeness(matrix, role) for layer in layers for role, matrix in layer.items()]
    assert len(found) == 24
    assert {resemblance.kind for resemblance in found} == {"none"}
    assert all("trained, most likely" in resemblance.sentence for resemblance in found)


def test_a_trained_matrix_of_the_right_std_is_not_fresh() -> None:
    """Not the std decides: MiniLM's matrices scaled to Xavier's std, and with their numbers shuffled within rows."""
    matrix = minilm()[3]["q"]
    scaled = matrix / matrix.std() * math.sqrt(2 / 768)
    assert likeness(scaled).kind == "none"
    shuffled = torch.stack(
        [row[torch.randperm(384, generator=generator_for(0, str(n)))] for n, row in enumerate(scaled)]
    )
    assert likeness(shuffled).kind == "none"


def test_a_packed_xavier_is_told_from_one_of_its_own() -> None:
    packed = fresh("xavier_uniform", 3 * 73, 73)
    for block in packed.split(73):
        assert "Xavier uniform on a packed (219, 73) matrix" in likeness(block, packed_rows=219).sentence
    own = likeness(fresh("xavier_uniform", 73, 73), packed_rows=219)
    assert "Xavier uniform" in own.sentence
    assert "packed" not in own.sentence


def test_std_by_formula_is_the_std_of_the_draws() -> None:
    """Closed forms against torch's initialisers, within 5 standard errors."""
    rows, columns = 307, 211
    for scheme in ("xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "torch_default", "normal"):
        (std,) = {c.std for c in candidates(rows, columns) if c.words.startswith(NAMES[scheme])}
        assert fresh(scheme, rows, columns).std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * rows * columns))


def test_moments_of_the_cut_normal_by_integration() -> None:
    x = torch.linspace(-2, 2, 200_001, dtype=torch.float64)
    density = torch.exp(-x.square() / 2)
    density /= torch.trapezoid(density, x)
    second = torch.trapezoid(x**2 * density, x).item()
    assert math.isclose(CUT_SHRINK**2, second, rel_tol=1e-8)
    for power, wanted in zip((4, 6, 8), MOMENTS["truncated normal"], strict=True):
        assert wanted == pytest.approx(torch.trapezoid(x**power * density, x).item() / second ** (power / 2), rel=1e-8)


def test_the_error_of_a_kurtosis_is_what_draws_show() -> None:
    count = 4_000
    assert _kurtosis_error("normal", count) == pytest.approx(math.sqrt(24 / count))
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(600, count, generator=generator, dtype=torch.float64) - 0.5
    found = torch.tensor([measure(row[:, None]).kurtosis for row in draws])
    assert found.std().item() == pytest.approx(_kurtosis_error("uniform", count), rel=0.12)
    assert found.mean().item() == pytest.approx(1.8, abs=0.005)


def test_zeros_are_a_design_for_the_output_alone() -> None:
    zeros = torch.zeros(5, 7)
    assert "by design" in likeness(zeros, "out").sentence
    assert likeness(zeros, "k").sentence == "all zeros: never trained"


def test_too_little_or_missing_is_said() -> None:
    assert "too few" in likeness(fresh("normal", 5, 7)).sentence
    broken = fresh("normal", 31, 37)
    broken[3, 5] = math.nan
    assert "missing" in likeness(broken).sentence


def test_one_step_of_training_by_rank_one_is_noticed() -> None:
    """A rank-one change that leaves std and kurtosis as they were shows in the spectrum."""
    matrix = fresh("xavier_normal", 199, 211)
    u, v = torch.randn(199, 1, generator=generator_for(1, "u")), torch.randn(1, 211, generator=generator_for(1, "v"))
    changed = likeness(matrix + 0.015 * u @ v)
    assert changed.kind == "none"
    assert any("singular value" in reason for reason in changed.reasons)
