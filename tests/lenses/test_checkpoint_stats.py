"""The statistics of one matrix, against torch's own and against hand numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_core.lenses import checkpoint_stats
from mha_core.lenses.checkpoint_stats import describe, measure, spectrum


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_moments_are_torchs(dtype: torch.dtype) -> None:
    matrix = (drawn(23, 31) * 0.3 + 0.1).to(dtype)
    found, exact = measure(matrix), matrix.double()
    assert found.mean == pytest.approx(exact.mean().item(), rel=1e-12)
    assert found.std == pytest.approx(exact.std(correction=0).item(), rel=1e-12)
    assert found.norm == pytest.approx(torch.linalg.matrix_norm(exact).item(), rel=1e-12)
    assert found.rms == pytest.approx(found.norm / math.sqrt(23 * 31))
    assert (found.minimum, found.maximum) == (exact.min().item(), exact.max().item())
    centred = exact - exact.mean()
    assert found.kurtosis == pytest.approx(((centred**4).mean() / (centred**2).mean() ** 2).item(), rel=1e-10)


def test_moments_by_hand() -> None:
    found = measure(torch.tensor([[1.0, -1.0, 0.0, math.nan], [3.0, -3.0, math.inf, -math.inf]]))
    assert (found.count, found.size, found.nan_count, found.inf_count) == (5, 8, 1, 2)
    assert found.mean == 0
    assert found.std == pytest.approx(2.0)  # (1 + 1 + 0 + 9 + 9) / 5 = 4
    assert found.kurtosis == pytest.approx((1 + 1 + 81 + 81) / 5 / 16)
    assert found.zero_share == pytest.approx(1 / 5)
    assert found.largest == 3


def test_nothing_but_nan() -> None:
    found = describe("q", "q", torch.full((3, 5), math.nan), 3)
    assert found.moments.nan_count == 15
    assert math.isnan(found.moments.std)
    assert found.spectrum is None


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_slices_change_nothing(rows: int, columns: int, seed: int) -> None:
    """The sums do not depend on how the matrix is sliced."""
    matrix = drawn(rows, columns, seed=seed)
    whole = measure(matrix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_stats, "SLICE", 7)
        sliced = measure(matrix)
    assert sliced.std == pytest.approx(whole.std, rel=1e-9, abs=1e-12)
    assert sliced.norm == pytest.approx(whole.norm, rel=1e-12)
    assert (sliced.minimum, sliced.maximum, sliced.count) == (whole.minimum, whole.maximum, whole.count)


@pytest.mark.parametrize("shape", [(17, 29), (29, 17), (1, 13), (13, 13)])
def test_singular_values_are_torchs(shape: tuple[int, int]) -> None:
    matrix = drawn(*shape)
    wanted = torch.linalg.svdvals(matrix.double())
    found = spectrum(matrix, matrix.double().norm().item())
    assert found.values == pytest.approx(wanted.tolist(), rel=1e-6)
    assert (found.largest, found.smallest) == (found.values[0], found.values[-1])
    share = wanted / wanted.sum()
    assert found.effective_rank == pytest.approx(math.exp(-(share * share.log()).sum().item()), rel=1e-6)
    assert found.stable_rank == pytest.approx((wanted.square().sum() / wanted[0] ** 2).item(), rel=1e-6)


def test_ranks_by_hand() -> None:
    identity = describe("q", "q", torch.eye(11)).spectrum
    assert identity is not None
    assert identity.effective_rank == pytest.approx(11)
    assert identity.stable_rank == pytest.approx(11)
    one = describe("q", "q", torch.outer(torch.arange(1.0, 8), torch.arange(1.0, 6))).spectrum
    assert one is not None
    assert one.effective_rank == pytest.approx(1, abs=1e-6)
    assert one.stable_rank == pytest.approx(1)
    assert one.smallest == 0
    none = describe("q", "q", torch.zeros(3, 5)).spectrum
    assert none is not None
    assert (none.effective_rank, none.stable_rank, none.largest) == (0, 0, 0)


def test_a_large_matrix_is_estimated_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_stats, "EXACT_SIDE", 50)
    matrix = drawn(211, 97)
    found = spectrum(matrix, matrix.norm().item())
    true = torch.linalg.svdvals(matrix)[0].item()
    assert 0.99 * true <= found.largest <= true * 1.0001
    assert found.smallest is None
    assert found.effective_rank is None
    assert "power iteration" in found.how


def test_heads_are_rows_of_q_and_columns_of_out() -> None:
    matrix = drawn(21, 21)
    for role, parts in (("q", matrix.split(7)), ("out", matrix.split(7, dim=1))):
        found = describe(role, role, matrix, 3)
        assert [block.head for block in found.heads] == [0, 1, 2]
        for block, part in zip(found.heads, parts, strict=True):
            assert block.moments.norm == pytest.approx(part.norm().item(), rel=1e-6)
            assert block.spectrum is not None
            assert block.spectrum.largest == pytest.approx(torch.linalg.svdvals(part)[0].item(), rel=1e-5)


def test_spread_of_norms_is_one_for_independent_numbers_and_grows_with_scaled_rows() -> None:
    fresh = describe("q", "q", drawn(211, 223))
    assert 0.6 < fresh.row_spread < 1.5
    assert 0.6 < fresh.column_spread < 1.5
    scaled = describe("q", "q", drawn(211, 223) * torch.linspace(0.5, 1.5, 211)[:, None])
    assert scaled.row_spread > 10
    assert scaled.column_spread < 1.5
