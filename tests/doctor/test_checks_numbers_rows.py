"""The rows of the weights, used and returned: one mistake at a time, and sound layers of many kinds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import row_sums
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import HEADS, Layer


class Fused(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.join(F.scaled_dot_product_attention(*self.heads(x)))


class OverQueries(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


class OverHeads(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


class OverBatch(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(0)


class OverPairs(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.flatten(2).softmax(-1).view(scores.shape)


class Twice(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).softmax(-1)


class MaskAfter(Layer):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores

    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return weights if mask is None else weights * mask[:, None, None, :]


class ShowsBeforeTheMask(MaskAfter):
    def forward(self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False):  # type: ignore[no-untyped-def]
        q, k, v = self.heads(x)
        scores = self.scores(q, k)
        shown = scores.softmax(-1)
        output = self.join(Layer.hide(self, scores, mask).softmax(-1) @ v)
        return (output, shown) if need_weights else output


class ShowsAnotherMap(Layer):
    def shown(self, weights: Tensor, scores: Tensor) -> Tensor:
        return weights.softmax(-1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OverQueries, "quer"),
        (OverHeads, "head"),
        (OverBatch, "batch"),
        (OverPairs, "not over the keys"),
        (Twice, "softmax of a softmax"),
        (MaskAfter, "softmax"),
        (ShowsBeforeTheMask, "not those that multiply the values"),
        (ShowsAnotherMap, "not those that multiply the values"),
    ],
)
def test_wrong_rows_fail(kind: type[nn.Module], words: str) -> None:
    found = row_sums.check(examine(kind()))
    assert found.status == "fail"
    assert words in f"{found.reason} {found.cause}"
    assert found.where is not None


def test_weights_that_are_all_one_are_called_that() -> None:
    class Singleton(Layer):
        def weigh(self, scores: Tensor) -> Tensor:
            return scores.unsqueeze(-1).softmax(-1).squeeze(-1)

    found = row_sums.check(examine(Singleton()))
    assert found.status == "fail"
    assert "exactly 1" in found.reason


class Renormalised(MaskAfter):
    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        kept = super().used(weights, mask)
        return kept / kept.sum(-1, keepdim=True)


class Averaged(Layer):
    def shown(self, weights: Tensor, scores: Tensor) -> Tensor:
        return weights.mean(1)


class Sink(Layer):
    """As gpt-oss: a learned score per head that takes a share of the softmax and is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def weigh(self, scores: Tensor) -> Tensor:
        sink = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class TalkingHeads(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(HEADS, HEADS, bias=False)

    def used(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        return self.mix(weights.transpose(1, 3)).transpose(1, 3)


@pytest.mark.parametrize("module", [Layer(dropout=0.3), Renormalised(), Averaged(), Fused()])
def test_rows_that_sum_to_one_pass(module: nn.Module) -> None:
    found = row_sums.check(examine(module))
    assert found.status == "pass", found.reason


@pytest.mark.parametrize("module", [Sink(), TalkingHeads()])
def test_rows_below_one_by_design(module: nn.Module) -> None:
    found = row_sums.check(examine(module))
    assert found.status in ("by_design", "pass"), found.reason


LIBRARY = [
    nn.MultiheadAttention(24, 4, batch_first=True),
    nn.MultiheadAttention(24, 4, dropout=0.1),
    nn.MultiheadAttention(24, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True),
    nn.MultiheadAttention(24, 4, batch_first=True, kdim=10, vdim=14, bias=False),
    nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
    MultiHeadAttention(24, 4, num_kv_heads=2, dropout=0.1),
    MultiHeadAttention(24, 4, kernel="sdpa"),
    MultiHeadAttention(24, 4, projection="fused", qkv_layout="interleaved", rope_theta=100.0, kernel="chunked"),
]


@pytest.mark.parametrize("module", LIBRARY)
def test_libraries_raise_no_alarm(module: nn.Module) -> None:
    found = row_sums.check(examine(module))
    assert found.status in ("pass", "by_design"), found.reason
