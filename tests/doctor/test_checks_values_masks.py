"""Checks of masks: the future, padding, rows that see nothing. Weak mask values are judged by how weak they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import batch_independence, causality, fully_masked, padding
from mha_core.doctor.subject import examine
from tests.doctor.value_layers import EMBED, HEAD, HEADS, Causal, Crossing, Sound


class OneTooWide(Causal):
    first = 2


class NotItself(Causal):
    first, fill = 0, -1e9


class UpsideDown(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        return super().hide(scores, mask).masked_fill(past, float("-inf"))


class Declared(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.causal = True


class OpenWithWeights(Causal):
    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-2, -1) / HEAD**0.5
        weights = (scores if need_weights else self.hide(scores, None)).softmax(-1)
        return self.out_proj(self.join(weights @ v)), weights if need_weights else None


class OpenWithPadding(Sound):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        keep = None if mask is None else mask[:, None, None, :]
        return self.out_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=mask is None)))


class OpenInTraining(Causal):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return Sound.hide(self, scores, mask) if self.training else super().hide(scores, mask)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (OneTooWide, "off by one"),
        (NotItself, "off by one"),
        (UpsideDown, "upside down"),
        (Declared, "no causal mask"),
        (OpenWithWeights, "weights wanted"),
        (OpenWithPadding, "padding mask"),
        (OpenInTraining, "training"),
    ],
)
def test_a_look_into_the_future_is_found(mistake: type[Sound], words: str) -> None:
    result = causality.check(examine(mistake()))
    assert result.status == "fail", result
    assert words in result.cause


def weak(value: float) -> nn.Module:
    module = Causal()
    module.fill = value
    return module


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (-1e4, "fail"),
        (-3e5, "warn"),
        (-1e6, "pass"),
        (-1e9, "pass"),
        (torch.finfo(torch.float32).min, "pass"),
        (-torch.inf, "pass"),
    ],
)
def test_the_future_is_hidden_as_well_as_its_value_is_strong(value: float, status: str) -> None:
    result = causality.check(examine(weak(value)))
    assert result.status == status, result
    if status != "pass":
        assert result.evidence["fill"] == pytest.approx(value)
        assert result.evidence["input_scale"] >= 1e2


@pytest.mark.parametrize(
    "make", [Causal, lambda: nn.MultiheadAttention(EMBED, HEADS), lambda: MultiHeadAttention(EMBED, HEADS)]
)
def test_a_hidden_future_passes(make: Callable[[], nn.Module]) -> None:
    assert causality.check(examine(make())).status == "pass"


def test_a_layer_that_looks_both_ways_cannot_be_asked() -> None:
    class Plain(Sound):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)

    assert causality.check(examine(Plain())).status == "not_applicable"
    assert causality.check(examine(Plain(), causal=False)).status == "pass"


@pytest.mark.parametrize(("shift", "name"), [(0, "top-left"), (3, "bottom-right")])
def test_the_alignment_of_causal_crossing_is_named(shift: int, name: str) -> None:
    class Aligned(Crossing):
        def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            queries, keys = scores.shape[-2:]
            seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if shift else 0)
            return scores.masked_fill(~seen, -1e9).softmax(-1)

    result = causality.check(examine(Aligned(), causal=True))
    assert result.status == "pass", result
    assert name in result.evidence["alignment_4_queries_7_keys"]


class TimesMask(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores * mask[:, None, None, :]


class ThrownAway(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        return scores


class AfterSoftmax(Sound):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = scores.softmax(-1)
        return weights if mask is None else weights * mask[:, None, None, :]


class Renormalised(AfterSoftmax):
    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weigh(scores, mask)
        return weights / weights.sum(-1, keepdim=True)


class Repeated(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        batch, heads, queries, keys = scores.shape
        keep = mask[:, None, :].expand(batch, queries, keys).repeat(heads, 1, 1).view(scores.shape)
        return scores.masked_fill(~keep, float("-inf"))


class NotInTraining(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(scores, None if self.training else mask)


class TimesInfinity(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores + (1.0 - mask[:, None, None, :].float()) * float("-inf")


@pytest.mark.parametrize(
    "mistake",
    [TimesMask, ThrownAway, AfterSoftmax, Repeated, NotInTraining, TimesInfinity],
    ids=lambda kind: kind.__name__,
)
def test_a_leak_of_padding_is_found(mistake: type[Sound]) -> None:
    result = padding.check(examine(mistake()))
    assert result.status == "fail", result
    assert result.cause


def test_masks_in_the_order_of_heads_mix_samples() -> None:
    result = batch_independence.check(examine(Repeated()))
    assert result.status == "fail"
    assert "repeat_interleave" in result.cause


@pytest.mark.parametrize(
    ("value", "status"),
    [(-1e3, "fail"), (-1e4, "warn"), (-1e5, "warn"), (-1e6, "pass"), (-1e9, "pass"), (-torch.inf, "pass")],
)
def test_padding_is_hidden_as_well_as_its_value_is_strong(value: float, status: str) -> None:
    class Filled(Sound):
        def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], value)

    result = padding.check(examine(Filled()))
    assert result.status == status, result
    assert ("fill" in result.evidence) is (value > -1e7)  # told of, though it may pass


@pytest.mark.parametrize(
    "make", [Sound, Causal, Crossing, Renormalised, lambda: nn.MultiheadAttention(EMBED, HEADS, batch_first=True)]
)
def test_hidden_padding_passes(make: Callable[[], nn.Module]) -> None:
    result = padding.check(examine(make()))
    assert result.status == "pass", result


@pytest.mark.parametrize(
    ("value", "status", "convention"),
    [(-torch.inf, "warn", "NaN"), (torch.finfo(torch.float32).min, "pass", "uniform")],
)
def test_the_convention_of_empty_rows_is_named(value: float, status: str, convention: str) -> None:
    class Filled(Sound):
        def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], value)

    result = fully_masked.check(examine(Filled()))
    assert result.status == status, result
    assert set(result.evidence["convention"].values()) == {convention}
    gradients = {"NaN"} if convention == "NaN" else {"finite"}
    assert set(result.evidence["gradients_without_these_rows"].values()) == gradients


def test_fused_attention_gives_zero_and_finite_gradients() -> None:
    class Fused(Sound):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
            keep = None if mask is None else mask[:, None, None, :]
            return self.out_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))

    result = fully_masked.check(examine(Fused()))
    assert result.status == "pass"
    assert set(result.evidence["convention"].values()) == {"zero"}


def test_nan_that_reaches_another_sample_fails() -> None:
    assert fully_masked.check(examine(Repeated())).status == "fail"


def test_nan_replaced_after_the_softmax_comes_back_in_the_gradients() -> None:
    class Replaced(Sound):
        def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            if mask is not None:
                scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)[:, None, None, :]
            return scores.softmax(-1).nan_to_num()

    result = fully_masked.check(examine(Replaced()))
    assert result.status == "warn", result
    assert "backward" in result.cause
