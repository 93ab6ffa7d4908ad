"""Mistakes that few tokens, one mask at a time or one mode do not show, each beside what looks like it and is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.doctor.checks import (
    batch_independence,
    constant_values,
    cross_attention,
    decode,
    gradients,
    mode_round_trip,
    padding,
    permutation,
)
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Subject, examine
from tests.doctor.attention_parts import line, marked
from tests.doctor.value_layers import HEAD, HEADS, Sound

Check = Callable[[Subject], CheckResult]


class KeyBlocks(Sound):
    """Keys in blocks of 16; `exact` weighs each by its sum of exponentials."""

    exact = False

    def attend(self, query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        outputs, sums = [], []
        for keys, values in zip(k.split(16, 2), v.split(16, 2), strict=True):
            scores = q @ keys.mT / HEAD**0.5
            outputs.append(scores.softmax(-1) @ values)
            sums.append(scores.logsumexp(-1, keepdim=True))
        parts = torch.stack(sums).softmax(0) if self.exact else torch.full((len(sums), 1, 1, 1, 1), 1 / len(sums))
        return self.out_proj(self.join((torch.stack(outputs) * parts).sum(0)))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x, x, None)


class ExactKeyBlocks(KeyBlocks):
    exact = True


class FilledBlocks(Sound):
    """Tokens filled up with zeros to a multiple of 8."""

    hides = False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        length = x.shape[1]
        filled = F.pad(x, (0, 0, 0, -length % 8))
        mask = (torch.arange(filled.shape[1]) < length).expand(x.shape[0], -1) if self.hides else None
        return self.attend(filled, filled, mask)[:, :length]


class HiddenFilling(FilledBlocks):
    hides = True


class Alibi(Sound):
    sign = -1.0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None])

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        place = torch.arange(scores.shape[-1])
        distance = (place[:, None] - place).abs()
        return super().hide(scores + self.sign * self.slopes * distance, mask)


class FarFirst(Alibi):
    sign = 1.0


@pytest.mark.parametrize(
    ("kind", "check", "word"),
    [
        (KeyBlocks, permutation.check, "normalised by itself"),
        (FilledBlocks, constant_values.check, "fill a block"),
        (FarFirst, permutation.check, "ALiBi"),
    ],
)
def test_what_shows_with_many_tokens_or_far_ones_fails(kind: type[nn.Module], check: Check, word: str) -> None:
    found = check(examine(kind()))
    assert found.status == "fail", found
    assert word in found.cause
    assert found.where is not None


@pytest.mark.parametrize("kind", [ExactKeyBlocks, HiddenFilling, Alibi])
def test_blocks_and_biases_that_are_right_do_not_fail(kind: type[nn.Module]) -> None:
    for check in (permutation.check, constant_values.check):
        assert check(examine(kind())).status in ("pass", "by_design")


class TwoMasks(Sound):
    """attn_mask (S, S) and key_padding_mask (B, S), bool, True = ignore."""

    def allowed(self, pairs: Tensor | None, keys: Tensor | None) -> Tensor | None:
        hidden = [one for one in (pairs, None if keys is None else keys[:, None, None, :]) if one is not None]
        return None if not hidden else ~(hidden[0] | hidden[-1])

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        keep = self.allowed(attn_mask, key_padding_mask)
        return self.out_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


class LastMaskWins(TwoMasks):
    def allowed(self, pairs: Tensor | None, keys: Tensor | None) -> Tensor | None:
        keep = None if pairs is None else ~pairs
        if keys is not None:
            keep = ~keys[:, None, None, :]  # wrong
        return keep


class OneMaskTurned(TwoMasks):
    """True means do not attend."""

    def allowed(self, pairs: Tensor | None, keys: Tensor | None) -> Tensor | None:
        return super().allowed(pairs, None if keys is None else ~keys)


class AddedAsGiven(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores + mask[:, None, None, :].to(scores.dtype)  # wrong


class SaidAdded(AddedAsGiven):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: (B, S), 0 for tokens that may be attended and -inf for the others, added to the scores."""
        return super().forward(x, mask)


class SaidKept(AddedAsGiven):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: bool (B, S), True for valid tokens."""
        return super().forward(x, mask)


class SquareByLuck(Sound):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.shape[0] == mask.shape[1]:
            return scores.masked_fill(~mask, -1e30)  # wrong
        return super().hide(scores, mask)


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        (LastMaskWins, "fail", "replaces the other"),
        (OneMaskTurned, "warn", "other way round"),
        (AddedAsGiven, "warn", "0/1 mask"),
        (SaidKept, "fail", "0 and 1"),
        (TwoMasks, "pass", ""),
        (SaidAdded, "pass", ""),
    ],
)
def test_masks_together_and_as_they_are_documented(kind: type[nn.Module], status: str, word: str) -> None:
    found = padding.check(examine(kind()))
    assert (found.status, word in found.cause) == (status, True), found


def test_the_line_that_replaces_a_mask_is_named() -> None:
    assert line(padding.check(examine(LastMaskWins())).where) == marked(LastMaskWins)


def test_a_mask_over_keys_taken_for_pairs_where_both_fit_fails() -> None:
    found = batch_independence.check(examine(SquareByLuck()))
    assert found.status == "fail"
    assert line(found.where) == marked(SquareByLuck)
    assert batch_independence.check(examine(Sound())).status == "pass"


class HandDropped(Sound):
    rate = 0.25

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weigh(scores, mask)
        return self.drop(weights) if self.training else weights

    def drop(self, weights: Tensor) -> Tensor:
        return weights * (torch.rand_like(weights) > self.rate)


class HandScaled(HandDropped):
    def drop(self, weights: Tensor) -> Tensor:
        return super().drop(weights) / (1 - self.rate)


class ScaledInEval(HandDropped):
    """Dropout as it was first written down: the mean is kept by eval."""

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weigh(scores, mask)
        return weights if self.training else weights * (1 - self.rate)


class StaysInEval(Sound):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.eval()  # wrong
        return super().forward(x, mask)


def test_training_keeps_the_mean_of_the_weights_and_its_mode() -> None:
    dropped, stays = (mode_round_trip.check(examine(kind())) for kind in (HandDropped, StaysInEval))
    assert (dropped.status, "1 - p" in dropped.cause) == ("fail", True), dropped
    assert (stays.status, line(stays.where)) == ("fail", marked(StaysInEval)), stays
    assert mode_round_trip.check(examine(HandScaled())).status == "pass"
    assert "1 - p" not in mode_round_trip.check(examine(ScaledInEval())).cause


class CutOff(nn.Module):
    """Width 20 with 3 heads of 6 channels: two are left over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.num_heads = 3
        self.q, self.k, self.v = (nn.Linear(20, 20) for _ in range(3))
        self.out = nn.Linear(18, 20)

    def heads(self, x: Tensor) -> Tensor:
        x = x[..., :18]  # wrong
        return x.unflatten(-1, (3, 6)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(p(x)) for p in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_channels_that_no_head_takes_get_no_gradient() -> None:
    found = gradients.check(examine(CutOff(), embed_dim=20))
    assert (found.status, "rows 18 to 19 of 20" in found.reason) == ("fail", True), found
    assert line(found.where) == marked(CutOff)


class Decoding(Sound):
    """A decoder's layer: hides the future in self-attention, and `everywhere` over a context too."""

    everywhere = True

    def __init__(self) -> None:
        super().__init__()
        self.is_decoder = True

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:  # type: ignore[override]
        memory = x if context is None else context
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        keep = keep.tril() if context is None or self.everywhere else keep
        return self.out_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


class DecodingOnly(Decoding):
    everywhere = False


def test_a_decoders_triangle_over_another_sequence_is_told() -> None:
    found = cross_attention.check(examine(Decoding()))
    assert (found.status, "causal" in found.cause) == ("warn", True), found
    assert cross_attention.check(examine(DecodingOnly())).status == "pass"


class Updating(Sound):
    """Keys and values go through `past_key_values.update`; `takes` says whether what it gives is used."""

    def __init__(self, takes: bool) -> None:
        super().__init__()
        self.takes = takes

    def forward(self, x: Tensor, past_key_values: object = None) -> Tensor:  # type: ignore[override]
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if past_key_values is not None:
            every = past_key_values.update(k, v, 0)  # type: ignore[attr-defined]
            k, v = every if self.takes else (k, v)
        new, all_ = q.shape[-2], k.shape[-2]
        keep = torch.ones(new, all_, dtype=torch.bool).tril(all_ - new)
        return self.out_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


def test_a_cache_whose_answer_is_thrown_away_fails() -> None:
    right, wrong = (decode.check(examine(Updating(takes), causal=True)) for takes in (True, False))
    assert (right.status, "with the cache" in right.reason) == ("pass", True), right
    assert (wrong.status, "does not grow" in wrong.cause) == ("fail", True), wrong
