"""Half precision: crashes, NaN and overflow, each in a layer with that one mistake."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import half_precision
from mha_core.doctor.probes.half_run import overflowing_inputs
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import HEAD, Causal, Layer


class FilledWith(Layer):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], self.fill)


class WideSoftmax(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1, dtype=torch.float32)


class WideSoftmaxCastBack(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)


class FloatTable(Layer):
    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        table = torch.linspace(0.5, 1.5, x.shape[1])[:, None]
        return q * table, k * table, v


class FloatMask(Layer):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        size = scores.shape[-1]
        return scores + torch.full((size, size), -1e9).triu(1)


class SmallEps(Layer):
    """Linear attention whose normaliser can be 0: eps 1e-8 is 0 in float16."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.heads(x)
        q, k = F.relu(q - 9.0), F.relu(k)
        context = q @ (k.transpose(-2, -1) @ v)
        return self.join(context / ((q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True) + 1e-8))


class ScaledFirst(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * HEAD**-0.5) @ k.transpose(-2, -1)


class Rounded(Layer):
    """Right in float32 and bfloat16; in float16 the weights lose almost all digits."""

    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights * 1e-7 / 1e-7 if weights.dtype == torch.float16 else weights


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (WideSoftmax(), "softmax gives float32"),
        (FloatTable(), "table or mask made in float32"),
        (FloatMask(), "table or mask made in float32"),
        (SmallEps(), "the constant 1e-08 is 0 in float16"),
    ],
)
def test_a_crash_or_nan_in_half_precision_fails_with_its_cause(module: nn.Module, words: str) -> None:
    found = half_precision.check(examine(module))
    assert found.status == "fail", found.reason
    assert words in found.cause
    assert found.where is not None
    assert found.where.file == "test_checks_numbers_half.py"


def test_a_fill_that_float16_cannot_hold_warns_at_its_line() -> None:
    found = half_precision.check(examine(FilledWith(-1e9)))
    assert found.status == "warn"
    assert "-6.55e+04" in found.cause
    assert found.where is not None
    assert "masked_fill" in found.where.code


def test_too_little_precision_warns() -> None:
    found = half_precision.check(examine(Rounded()))
    assert found.status == "warn"
    assert "differs from float32" in found.reason


def test_a_scale_after_the_product_warns_and_one_before_it_passes() -> None:
    late, early = (half_precision.check(examine(module)) for module in (Layer(), ScaledFirst()))
    assert late.status == "warn"
    assert "before it is scaled" in late.reason
    assert late.where is not None
    assert early.status == "pass", early.reason


def test_the_overflow_probe_passes_what_float16_holds_only_before_scaling() -> None:
    module = Layer()
    found = overflowing_inputs(examine(module), 2, 5)
    assert found is not None
    inputs, claimed = found
    q, k, _ = module.heads(inputs.query)
    product = float((q @ k.transpose(-2, -1)).abs().max().detach())
    assert product == pytest.approx(claimed, rel=1e-3)
    assert product > 65504 > product / HEAD**0.5


@pytest.mark.parametrize(
    "module",
    [
        WideSoftmaxCastBack(),
        FilledWith(float("-inf")),
        FilledWith(-6e4),
        Causal(),
    ],
)
def test_sound_layers_do_not_fail(module: nn.Module) -> None:
    found = half_precision.check(examine(module))
    assert found.status == "pass" or "before it is scaled" in found.reason, found.reason


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(24, 4),
        nn.MultiheadAttention(24, 4, batch_first=True, add_bias_kv=True),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
        MultiHeadAttention(24, 4, num_kv_heads=2, rope_theta=100.0),
        MultiHeadAttention(24, 4, kernel="sdpa"),
    ],
)
def test_libraries_raise_no_alarm(module: nn.Module) -> None:
    found = half_precision.check(examine(module))
    assert found.status in ("pass", "by_design"), found.reason
