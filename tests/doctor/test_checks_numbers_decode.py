"""Decoding with a key/value cache against the full pass: one mistake at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import decode
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import Cached, Causal, Layer


class Turned(Cached):
    """Positions turn q and k; `offset` tells where a step begins."""

    restart = False

    def forward(self, x: Tensor, past_key_value=None, use_cache: bool = False):  # type: ignore[no-untyped-def, override]
        first = 0 if past_key_value is None or self.restart else past_key_value[0].shape[2]
        self.rotary_angles = (torch.arange(x.shape[1]) + first)[:, None] * 0.3
        return super().forward(x, past_key_value, use_cache)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        cos, sin = self.rotary_angles.cos(), self.rotary_angles.sin()

        def turn(t: Tensor) -> Tensor:
            a, b, rest = t[..., :5], t[..., 5:10], t[..., 10:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

        return turn(q), turn(k), v


class Restarted(Turned):
    restart = True


class TopLeft(Cached):
    def past_mask(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))


class SquareMask(Cached):
    def past_mask(self, scores: Tensor) -> Tensor:
        new = scores.shape[-2]
        return scores if new == 1 else scores + torch.full((new, new), float("-inf")).triu(1)


class Forgets(Cached):
    def forward(self, x: Tensor, past_key_value=None, use_cache: bool = False):  # type: ignore[no-untyped-def, override]
        output, cache = super().forward(x, past_key_value, use_cache)
        return output, (tuple(t[:, :, -2:] for t in cache) if cache is not None else None)


class FusedTopLeft(Cached):
    def forward(self, x: Tensor, past_key_value=None, use_cache: bool = False):  # type: ignore[no-untyped-def, override]
        q, k, v = self.heads(x)
        if past_key_value is not None:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(past_key_value, (k, v), strict=True))
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True)), ((k, v) if use_cache else None)


@pytest.mark.parametrize("kind", [Cached, Turned])
def test_a_right_cache_passes(kind: type[nn.Module]) -> None:
    found = decode.check(examine(kind()))
    assert found.status == "pass", found.reason
    assert "with the cache" in found.reason


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TopLeft, "mask"),
        (FusedTopLeft, "top-left"),
        (SquareMask, "(3, 7)"),
        (Restarted, "positions start at 0 again"),
        (Forgets, "does not grow"),
    ],
)
def test_a_wrong_cache_fails_with_its_cause(kind: type[nn.Module], words: str) -> None:
    found = decode.check(examine(kind()))
    assert found.status == "fail", found.reason
    assert words in found.cause


class DependsOnLength(Causal):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (k.shape[-2] / 5)


def test_without_a_cache_the_first_rows_are_compared() -> None:
    assert decode.check(examine(Causal(), causal=True)).status == "pass"
    assert decode.check(examine(DependsOnLength(), causal=True)).status == "fail"
    assert decode.check(examine(Layer())).status == "not_applicable"


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(24, 4),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
        MultiHeadAttention(24, 4, num_kv_heads=2, rope_theta=100.0),
    ],
)
def test_libraries_raise_no_alarm(module: nn.Module) -> None:
    found = decode.check(examine(module))
    assert found.status in ("pass", "not_applicable"), found.reason
