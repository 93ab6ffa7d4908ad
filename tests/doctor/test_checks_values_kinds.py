"""Mistakes of values that keep every sum and shape: heads joined along tokens, arguments left out, values rotated,
scores without a softmax, a triangle over another sequence; each beside what looks like it and is meant.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mha_core.doctor.checks import causality, constant_values, cross_attention, padding, permutation, reach
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Subject, examine
from tests.doctor.value_layers import EMBED, HEAD, HEADS, Crossing, Sound

Check = Callable[[Subject], CheckResult]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(EMBED, HEAD) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT / HEAD**0.5).softmax(-1) @ self.v(x)


class ManyHeads(nn.Module):
    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.out = nn.Linear(EMBED, EMBED)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([head(x) for head in self.heads], dim=self.axis).reshape(x.shape))


class HeadsAlongTokens(ManyHeads):
    axis = 1


class ReshapedAfterwards(Sound):
    def join(self, context: Tensor) -> Tensor:
        joined = super().join(context)
        return joined.transpose(1, 2).reshape(joined.shape)  # tokens and channels change places, shapes do not


class NamelessPlaces(Sound):
    """A table of places that nothing names."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, EMBED))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + self.w[: x.shape[1]])


@pytest.mark.parametrize("kind", [HeadsAlongTokens, ReshapedAfterwards])
def test_rows_given_to_other_tokens_after_the_heads_fail(kind: type[nn.Module]) -> None:
    found = [check(examine(kind())) for check in (reach.check, permutation.check)]
    assert "fail" in [one.status for one in found], found
    assert found[1].status == "fail", found[1]
    assert found[1].where is not None
    assert "reshape" in found[1].where.code


@pytest.mark.parametrize("kind", [ManyHeads, NamelessPlaces])
def test_heads_side_by_side_and_places_without_a_name_do_not_fail(kind: type[nn.Module]) -> None:
    for check in (reach.check, permutation.check):
        assert check(examine(kind())).status in ("pass", "by_design")


class Triple(Sound):
    """forward(query, key, value); `using` says which argument each projection gets."""

    using = (0, 1, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        given = (query, key, value)
        q, k, v = (
            self.split(project(given[index]))
            for project, index in zip((self.q_proj, self.k_proj, self.v_proj), self.using, strict=True)
        )
        return self.out_proj(self.join((q @ k.mT / HEAD**0.5).softmax(-1) @ v))


class WithoutValue(Triple):
    using = (0, 1, 1)


class WithoutKey(Triple):
    using = (0, 2, 2)


class OneMemory(WithoutValue):
    def __init__(self) -> None:
        super().__init__()
        self.encoder_decoder_attention = True  # as in fairseq: key and value are one memory then


@pytest.mark.parametrize(("kind", "argument"), [(WithoutValue, "value"), (WithoutKey, "key")])
def test_an_argument_without_any_effect_fails(kind: type[nn.Module], argument: str) -> None:
    found = cross_attention.check(examine(kind()))
    assert found.status == "fail", found
    assert found.evidence["argument"] == argument
    assert found.where is not None


def test_arguments_that_all_count_or_are_one_memory_do_not_fail() -> None:
    assert cross_attention.check(examine(Triple())).status == "pass"
    assert cross_attention.check(examine(OneMemory())).status == "by_design"


class Rotary(Sound):
    rotates_values = False

    def rotary(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(half)
        first, second = x.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)

    def attend(self, query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        q, k, v = self.rotary(q), self.rotary(k), self.rotary(v) if self.rotates_values else v
        return self.out_proj(self.join(self.weigh(q @ k.mT / HEAD**0.5, mask) @ v))


class RotaryValues(Rotary):
    rotates_values = True


class AskedRotaryValues(Rotary):
    rotates_values = True

    def __init__(self) -> None:
        super().__init__()
        self.rotary_value = True  # as RoFormer's configuration offers


def test_rotated_values_fail_where_nothing_asks_for_them() -> None:
    found = constant_values.check(examine(RotaryValues()))
    assert found.status == "fail", found
    assert "values" in found.cause
    assert found.where is not None
    assert constant_values.check(examine(Rotary())).status == "pass"
    assert constant_values.check(examine(AskedRotaryValues())).status == "by_design"


class NoSoftmax(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores


class SoftmaxThrownAway(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        scores.softmax(-1)
        return scores


class CausalNoSoftmax(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.tril()


class LinearAttention(NoSoftmax):
    """Says itself that nothing is normalised."""


class Sigmoid(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.sigmoid()


class Normalised(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        positive = nn.functional.elu(scores) + 1.1
        return positive / positive.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", [NoSoftmax, SoftmaxThrownAway, CausalNoSoftmax])
def test_scores_that_meet_values_without_a_softmax_fail(kind: type[nn.Module]) -> None:
    found = constant_values.check(examine(kind()))
    assert found.status == "fail", found
    assert "softmax" in found.cause
    assert found.where is not None
    assert "@ " in found.where.code


@pytest.mark.parametrize(
    ("kind", "status"), [(LinearAttention, "by_design"), (Sigmoid, "by_design"), (Normalised, "pass"), (Sound, "pass")]
)
def test_other_weights_are_by_design(kind: type[nn.Module], status: str) -> None:
    assert constant_values.check(examine(kind())).status == status


class SigmoidOfLength(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = (scores - scores.shape[-1] ** 0.5).sigmoid()
        return weights if mask is None else weights.masked_fill(~mask[:, None, None, :], 0.0)


class Decaying(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        place = torch.arange(scores.shape[-1])
        return scores * 0.9 ** (place[:, None] - place).abs()


def test_weights_that_follow_the_length_or_the_places_do_not_fail() -> None:
    assert padding.check(examine(SigmoidOfLength())).status == "pass"
    assert permutation.check(examine(Decaying())).status == "by_design"


class CrossAttention(Crossing):
    """Every target may look at the whole source."""

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf")).softmax(-1)


def test_a_triangle_over_another_sequence_is_found() -> None:
    found = cross_attention.check(examine(CrossAttention()))
    assert found.status in ("fail", "warn"), found
    assert "two sequences" in found.reason
    assert cross_attention.check(examine(Crossing())).status == "pass"


class LeaksBySoftmax(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.softmax(-1)  # here


class LeaksByShift(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf")).softmax(-1)

    def join(self, context: Tensor) -> Tensor:
        return super().join(context).roll(-1, 1)  # here


class LeaksByNorm(LeaksByShift):
    def join(self, context: Tensor) -> Tensor:
        return Sound.join(self, nn.functional.normalize(context, dim=2))  # here


@pytest.mark.parametrize("kind", [LeaksBySoftmax, LeaksByShift, LeaksByNorm])
def test_a_leak_is_told_with_the_line_that_carries_it(kind: type[nn.Module]) -> None:
    found = causality.check(examine(kind(), causal=True))
    assert found.status == "fail", found
    assert found.where is not None
    assert "# here" in found.where.code
