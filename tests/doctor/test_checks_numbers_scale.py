"""The factor on the scores and the rows of the weights: one mistake at a time, and sound layers of many kinds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import row_sums, scale
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import EMBED, HEAD, HEADS, Layer


class Scaled(Layer):
    """Scores times any factors, one after the other."""

    def __init__(self, *factors: float, **sizes: int) -> None:
        super().__init__(**sizes)
        self.factors = factors

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        found = q @ k.transpose(-2, -1)
        for factor in self.factors:
            found = found * factor
        return found


class Quarters(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * HEAD**-0.25) @ (k * HEAD**-0.25).transpose(-2, -1)


class QueryOnly(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / HEAD**0.5) @ k.transpose(-2, -1)


class Fused(Layer):
    def __init__(self, given: float | None = None) -> None:
        super().__init__()
        self.given = given

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.heads(x)
        return self.join(F.scaled_dot_product_attention(q, k, v, scale=self.given))


class Learned(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((HEADS, 1, 1), 0.7))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.log_scale.exp()


class Cosine(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * 10.0


class RelativeBias(Scaled):
    def __init__(self) -> None:
        super().__init__(1.0)
        self.relative_position_bias = nn.Parameter(torch.randn(HEADS, 64, 64) * 0.02)

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(scores + self.relative_position_bias[:, : scores.shape[-2], : scores.shape[-1]], mask)


class MissingInOnePath(Layer):
    """With weights wanted the scores are divided, without them they are not."""

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.heads(x)
        raw = q @ k.transpose(-2, -1)
        if need_weights:
            weights = (raw / math.sqrt(HEAD)).softmax(-1)
            return self.join(weights @ v), weights
        return self.join(raw.softmax(-1) @ v)


class MissingInTraining(Layer):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        raw = q @ k.transpose(-2, -1)
        return raw if self.training else raw / math.sqrt(HEAD)


class MissingWithMask(Layer):
    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else super().hide(scores * math.sqrt(HEAD), mask)


@pytest.mark.parametrize("module", [Layer(), Quarters(), QueryOnly(), Fused(), Scaled(HEAD**-0.25, HEAD**-0.25)])
def test_one_over_root_head_dim_is_right_however_it_is_written(module: nn.Module) -> None:
    found = scale.check(examine(module))
    assert found.status == "pass", found.reason
    assert found.evidence["factor"] == pytest.approx(11**-0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Scaled(EMBED**-0.5), "embed_dim 33"),
        (Fused(EMBED**-0.5), "embed_dim 33"),
        (Scaled(HEAD**-0.5, HEAD**-0.5), "scaled twice"),
        (Scaled(HEAD**0.5), "multiplied by sqrt(head_dim)"),
        (Scaled(HEAD**-0.25), "head_dim^(1/4)"),
        (Scaled(0.5 / HEAD), "without brackets"),
        (Scaled(HEAD**-0.5, EMBED**-0.5), "scaled twice"),
        (Scaled(HEADS**-0.5), "the number of heads 3"),
        (Scaled(-(HEAD**-0.5)), "multiplied by -"),
    ],
)
def test_a_wrong_factor_fails_with_its_name_and_line(module: nn.Module, words: str) -> None:
    found = scale.check(examine(module))
    assert found.status == "fail"
    assert words in found.reason
    assert found.cause
    assert found.where is not None
    assert found.where.file == "test_checks_numbers_scale.py"


def test_the_root_of_the_width_says_how_much_the_scores_lose() -> None:
    assert "1.73 times too small, sqrt(H) = sqrt(3)" in scale.check(examine(Scaled(EMBED**-0.5))).reason


def test_one_head_has_no_other_root_to_confuse() -> None:
    module = Scaled(13**-0.5, embed_dim=13, num_heads=1)
    assert scale.check(examine(module)).status == "pass"


@pytest.mark.parametrize("factor", [1 / HEAD, 0.125])
def test_a_single_unusual_constant_warns(factor: float) -> None:
    found = scale.check(examine(Scaled(factor)))
    assert found.status == "warn"
    assert f"{factor:.4g}" in found.reason
    if factor == 0.125:
        assert "fits head_dim 64, not 11" in found.reason


def test_no_scale_warns_with_the_saturation_it_causes() -> None:
    module = Scaled(1.0, embed_dim=128, num_heads=1)
    for layer in (module.q_proj, module.k_proj):
        nn.init.normal_(layer.weight, std=128**-0.5)
    found = scale.check(examine(module))
    assert found.status == "warn"
    assert found.evidence["mean_largest_weight"] > 3 * found.evidence["mean_largest_weight_if_scaled"]
    assert found.evidence["softmax_derivative_norm"] < found.evidence["softmax_derivative_norm_if_scaled"]


def small_queries() -> nn.Module:
    """No scale, and query weights smaller by sqrt(D), as T5 initialises them."""
    module = Scaled(1.0)
    for layer, std in ((module.q_proj, 0.2 * HEAD**-0.5), (module.k_proj, 0.2)):
        nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(module.q_proj.bias)
    return module


@pytest.mark.parametrize("module", [Learned(), Cosine(), RelativeBias(), small_queries()])
def test_a_scale_that_is_meant_is_by_design(module: nn.Module) -> None:
    found = scale.check(examine(module))
    assert found.status == "by_design", found.reason


@pytest.mark.parametrize("kind", [MissingInOnePath, MissingInTraining, MissingWithMask])
def test_paths_that_scale_differently_fail(kind: type[nn.Module]) -> None:
    found = scale.check(examine(kind()))
    assert found.status == "fail"
    assert "the paths scale differently" in found.reason


def test_a_module_without_softmax_is_not_judged() -> None:
    class Linear(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            q, k, v = self.heads(x)
            return self.join(F.elu(q) @ (F.elu(k).transpose(-2, -1) @ v))

    subject = examine(Linear())
    assert scale.check(subject).status == "not_applicable"
    assert row_sums.check(subject).status == "not_applicable"


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
    found = scale.check(examine(module))
    assert found.status in ("pass", "by_design"), found.reason
