"""Modes, repeated calls and randomness: one mistake at a time."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import determinism, mode_round_trip
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import HEAD, Causal, Layer


class LosesDropout(Layer):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        if not self.training:
            self.dropout = 0.0
        return F.dropout(weights, self.dropout, self.training)


class KeepsMask(Layer):
    """The causal mask of the first length is used for all."""

    kept: Tensor | None = None

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if self.kept is None:
            self.kept = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(self.kept, float("-inf"))


class KeepsEnoughMask(Layer):
    """A cache that grows when it has to, as it should."""

    kept: Tensor | None = None

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        size = scores.shape[-1]
        if self.kept is None or self.kept.shape[0] < size:
            self.kept = torch.ones(size, size, dtype=torch.bool).triu(1)
        return scores.masked_fill(self.kept[:size, :size], float("-inf"))


class KeepsKeys(Layer):
    """Keys and values of earlier calls stay."""

    past: tuple[Tensor, Tensor] | None = None

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        if self.past is not None and self.past[0].shape[0] == x.shape[0]:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(self.past, (k, v), strict=True))
        self.past = (k.detach(), v.detach())
        return q, k, v


class KeepsTable(Layer):
    """A float32 table that does not follow the module to float64."""

    table: Tensor | None = None

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        if self.table is None or self.table.shape[0] != x.shape[1]:
            self.table = torch.linspace(0.1, 0.9, x.shape[1], dtype=x.dtype)[:, None]
        return (
            q,
            k,
            (v @ torch.eye(HEAD, dtype=v.dtype)) * self.table if v.dtype == self.table.dtype else v @ self.table,
        )


class OtherWhenTraining(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (1.5 if self.training else 1.0)


class RaisesInTraining(Layer):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        if self.training and mask is not None:
            raise ValueError("no mask in training")
        return weights


class OtherWithWeights(Layer):
    def shown(self, weights: Tensor, scores: Tensor) -> Tensor:
        return weights

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.heads(x)
        scores = self.scores(q, k)
        if need_weights:
            return self.join(scores.softmax(-1) @ v), scores.softmax(-1)
        size = scores.shape[-1]
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        return self.join(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v)


class CountsCalls(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def join(self, context: Tensor) -> Tensor:
        if self.training:
            self.mean += context.detach().mean()
        return super().join(context - self.mean)


class Normed(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(33)

    def join(self, context: Tensor) -> Tensor:
        return self.norm(super().join(context).transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LosesDropout, "dropout is lost"),
        (KeepsMask, "second call"),
        (KeepsKeys, "second call"),
        (KeepsTable, "float64"),
        (OtherWhenTraining, "training without dropout differs"),
        (OtherWithWeights, "weights wanted differs"),
        (RaisesInTraining, "no mask in training"),
    ],
)
def test_a_module_that_remembers_or_differs_fails(kind: type[nn.Module], words: str) -> None:
    found = mode_round_trip.check(examine(kind()))
    assert found.status == "fail", found.reason
    assert words in found.reason


def test_the_line_that_loses_dropout_is_named() -> None:
    found = mode_round_trip.check(examine(LosesDropout()))
    assert found.where is not None
    assert found.where.code == "self.dropout = 0.0"


def test_state_updated_in_training_warns_and_batch_norm_is_by_design() -> None:
    assert mode_round_trip.check(examine(CountsCalls())).status == "warn"
    assert mode_round_trip.check(examine(Normed())).status == "by_design"


class DropsInEval(Layer):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return F.dropout(weights, 0.3)


class FusedDropsInEval(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.join(F.scaled_dot_product_attention(*self.heads(x), dropout_p=0.3))


class Noisy(Layer):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return weights + 0.1 * torch.rand_like(weights)


class PythonRandom(Layer):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return weights * (1 + random.random())


class Counts(Layer):
    calls = 0

    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        self.calls += 1
        return weights * self.calls


class WritesInput(Layer):
    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            x.mul_(1.5)
        return super().heads(x)


class WritesMask(Layer):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        return scores.masked_fill(mask.logical_not_()[:, None, None, :], float("-inf"))


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        (DropsInEval, "training=self.training", "F.dropout"),
        (FusedDropsInEval, "dropout_p is passed", "scaled_dot"),
        (Noisy, "rand_like", "rand_like"),
        (PythonRandom, "torch's seed does not govern", ""),
        (Counts, "kept on self", ""),
        (WritesInput, "in-place", "x.mul_"),
        (WritesMask, "in-place", "mask.logical_not_()"),
    ],
)
def test_random_or_destructive_calls_fail_with_their_line(kind: type[nn.Module], words: str, code: str) -> None:
    found = determinism.check(examine(kind()))
    assert found.status == "fail", found.reason
    assert words in found.cause
    if code:
        assert found.where is not None
        assert code in found.where.code


@pytest.mark.parametrize(
    "module",
    [
        Layer(dropout=0.2),
        Causal(),
        KeepsEnoughMask(),
        nn.MultiheadAttention(24, 4, dropout=0.1),
        nn.MultiheadAttention(24, 4, batch_first=True, add_zero_attn=True, kdim=10, vdim=14),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
        MultiHeadAttention(24, 4, num_kv_heads=2, dropout=0.1, rope_theta=100.0),
        MultiHeadAttention(24, 4, kernel="sdpa", projection="fused"),
    ],
)
@pytest.mark.parametrize("check", [mode_round_trip.check, determinism.check])
def test_sound_modules_raise_no_alarm(module: nn.Module, check) -> None:  # type: ignore[no-untyped-def]
    found = check(examine(module))
    assert found.status in ("pass", "not_applicable"), found.reason
