"""Checks of values without masks: what each finds, and what it lets pass. Every mistake keeps all shapes right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import batch_independence, constant_values, cross_attention, permutation, reach
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Subject, examine
from tests.doctor.value_layers import EMBED, HEAD, HEADS, Causal, Crossing, Sound

CHECKS: dict[str, Callable[[Subject], CheckResult]] = {
    "reach": reach.check,
    "batch_independence": batch_independence.check,
    "constant_values": constant_values.check,
    "permutation": permutation.check,
    "cross_attention": cross_attention.check,
}


class SplitByView(Sound):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], HEADS, x.shape[1], HEAD)  # the transpose is missing


class JoinedByView(Sound):
    def join(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], context.shape[2], EMBED)  # the transpose is missing


class BlocksOfTokens(SplitByView):
    def join(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], context.shape[2], EMBED)


class OverHeads(Sound):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, HEAD)

    def join(self, context: Tensor) -> Tensor:
        return context.flatten(2)


class OneSmallProjection(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(HEAD, HEAD) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        heads = self.split(x)
        q, k, v = self.q_proj(heads), self.k_proj(heads), self.v_proj(heads)
        return self.out_proj(self.join((q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ v))


class FirstTokenLost(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        lost = torch.zeros(scores.shape[-1], dtype=torch.bool)
        lost[0] = scores.shape[-1] > 1
        return scores.masked_fill(lost, float("-inf")).softmax(-1)


class Drowned(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores - 1e9).softmax(-1)  # float32 cannot hold a score beside 1e9


class AlongBatch(Sound):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class OverBatch(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.softmax(0)


class Normalised(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(EMBED)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2))


class OtherSamplesWeights(Sound):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x))
        weights = (q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1)
        output = self.out_proj(self.join(weights @ self.split(self.v_proj(x))))
        return output, weights.transpose(0, 1).reshape(weights.shape)


class OverQueries(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.softmax(-2)


class CausalAfterSoftmax(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.softmax(-1).tril()


class QueryLengthForKeys(Sound):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        batch, length = query.shape[:2]
        q, k, v = (
            p(x).view(batch, length, -1, HEAD).transpose(1, 2)
            for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(self.join((q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ v))


class ValuesOfTheQuery(Crossing):
    def forward(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        mixed = x.mean(1, keepdim=True)  # the other queries' content in every value
        return self.attend(x, context + mixed, None)


class Window(Sound):
    window = 2

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        place = torch.arange(scores.shape[-1])
        return scores.masked_fill((place[:, None] - place).abs() > self.window, float("-inf")).softmax(-1)


class Blocks(Sound):
    """Tokens see the block of four they are in."""

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        block = torch.arange(scores.shape[-1]) // 4
        return scores.masked_fill(block[:, None] != block, float("-inf")).softmax(-1)


class Convolved(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(EMBED, EMBED, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(self.conv(x.transpose(1, 2)).transpose(1, 2))


class ZeroOutput(Sound):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)


class ShiftedScores(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


class Residual(Sound):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))
        output = self.out_proj(self.join((q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ v))
        return nn.functional.layer_norm(output + query, (EMBED,))


class Relative(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.relative_bias = nn.Parameter(torch.randn(HEADS, 41))

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        place = torch.arange(scores.shape[-1])
        return (scores + self.relative_bias[:, place[:, None] - place + 20]).softmax(-1)


MISTAKES: list[tuple[type[Sound], str, str]] = [
    (SplitByView, "reach", "without a transpose"),
    (JoinedByView, "reach", "joined without"),
    (BlocksOfTokens, "reach", "without a transpose"),
    (OverHeads, "reach", "over the heads"),
    (OneSmallProjection, "reach", "before the projection"),
    (FirstTokenLost, "reach", ""),
    (Drowned, "reach", ""),
    (AlongBatch, "batch_independence", "batch_first=False"),
    (OverBatch, "batch_independence", "over the batch"),
    (OtherSamplesWeights, "batch_independence", "(heads, batch)"),
    (OverQueries, "constant_values", "over the queries"),
    (CausalAfterSoftmax, "constant_values", ""),
    (SplitByView, "constant_values", "without a transpose"),
    (SplitByView, "permutation", "without a transpose"),
    (JoinedByView, "permutation", "joined without"),
    (QueryLengthForKeys, "cross_attention", ""),
    (ValuesOfTheQuery, "cross_attention", ""),
]


@pytest.mark.parametrize(("mistake", "check", "cause"), MISTAKES, ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_is_found_and_named(mistake: type[Sound], check: str, cause: str) -> None:
    result = CHECKS[check](examine(mistake()))
    assert result.status == "fail", result
    assert cause in result.cause
    assert result.reason


SOUND: list[tuple[Callable[[], nn.Module], dict[str, str]]] = [
    (Sound, {}),
    (Causal, {}),
    (Crossing, {}),
    (Window, {"reach": "by_design", "permutation": "by_design"}),
    (Blocks, {"reach": "by_design", "permutation": "by_design"}),
    (Convolved, {"reach": "by_design", "permutation": "by_design", "constant_values": "by_design"}),
    (ZeroOutput, {}),
    (ShiftedScores, {}),
    (Residual, {}),
    (Relative, {"permutation": "by_design"}),
    (lambda: nn.MultiheadAttention(EMBED, HEADS, batch_first=True), {}),
    (lambda: nn.MultiheadAttention(EMBED, HEADS, dropout=0.1), {}),
    (
        lambda: nn.MultiheadAttention(EMBED, HEADS, batch_first=True, add_zero_attn=True),
        {"constant_values": "by_design"},
    ),
    (lambda: nn.MultiheadAttention(EMBED, HEADS, batch_first=True, add_bias_kv=True), {"constant_values": "by_design"}),
    (lambda: nn.MultiheadAttention(EMBED, HEADS, batch_first=True, kdim=14, vdim=22), {}),
    (lambda: nn.TransformerEncoderLayer(EMBED, HEADS, 17, batch_first=True), {}),
    (lambda: MultiHeadAttention(EMBED, HEADS, kernel="sdpa"), {}),
    (lambda: MultiHeadAttention(60, 6, num_kv_heads=2, projection="fused"), {}),
]


@pytest.mark.parametrize(("make", "unusual"), SOUND)
def test_a_sound_layer_raises_no_alarm(make: Callable[[], nn.Module], unusual: dict[str, str]) -> None:
    torch.manual_seed(2)
    subject = examine(make())
    for name, check in CHECKS.items():
        result = check(subject)
        wanted = {unusual.get(name, "pass"), *(() if name in unusual else ("not_applicable",))}
        assert result.status in wanted, result


def test_batch_normalisation_is_a_warning() -> None:
    result = batch_independence.check(examine(Normalised()))
    assert result.status == "warn"
    assert "BatchNorm" in result.cause


def test_a_small_projection_is_told_with_its_parameters() -> None:
    evidence = reach.check(examine(OneSmallProjection())).evidence
    assert evidence["parameters"] == 3 * (HEAD * HEAD + HEAD) + EMBED * EMBED + EMBED
    assert evidence["parameters_of_4_E_E"] == 4 * EMBED * EMBED
    assert evidence["channels_read"] == HEAD


def test_self_attention_cannot_be_asked_to_cross() -> None:
    assert cross_attention.check(examine(Sound())).status == "not_applicable"


def test_a_crash_is_told_with_its_line() -> None:
    result = cross_attention.check(examine(QueryLengthForKeys()))
    assert result.where is not None
    assert ".view(batch, length, -1, HEAD)" in result.where.code


def test_a_length_that_crashes_after_a_shorter_one_is_found() -> None:
    class Keeps(Sound):
        kept: Tensor | None = None

        def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            if self.kept is None:
                self.kept = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(self.kept, float("-inf")).softmax(-1)

    result = reach.check(examine(Keeps()))
    assert result.status == "fail"
    assert "fresh copy" in result.reason
