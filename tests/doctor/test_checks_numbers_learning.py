"""Gradients and shared key/value heads: one mistake at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.checks import gqa, gradients
from mha_core.doctor.subject import examine
from tests.doctor.number_layers import EMBED, Grouped, Layer


class Tiled(Grouped):
    def share(self, t: Tensor) -> Tensor:
        return t.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)


class MixedSharing(Grouped):
    def share_values(self, t: Tensor) -> Tensor:
        return t.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)


class ByEinsum(Grouped):
    """Groups as an axis of their own, nothing repeated."""

    turned = False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        batch, length, _ = x.shape
        kv, group = self.num_kv_heads, self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(batch, length, group if self.turned else kv, kv if self.turned else group, 5)
        q = q.transpose(2, 3) if self.turned else q
        k = self.k_proj(x).view(batch, length, kv, 5)
        v = self.v_proj(x).view(batch, length, kv, 5)
        weights = (torch.einsum("bqngd,bknd->bngqk", q, k) / 5**0.5).softmax(-1)
        return self.out_proj(torch.einsum("bngqk,bknd->bqngd", weights, v).reshape(batch, length, -1))


class TurnedEinsum(ByEinsum):
    turned = True


class FusedGroups(Grouped):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = Layer.heads(self, x)
        return self.join(F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


class OneForAll(Grouped):
    def __init__(self) -> None:
        super().__init__(kv_heads=1)

    def share(self, t: Tensor) -> Tensor:
        return t.expand(-1, self.num_heads, -1, -1)


@pytest.mark.parametrize("kind", [Grouped, ByEinsum, FusedGroups])
def test_neighbours_that_share_pass(kind: type[nn.Module]) -> None:
    found = gqa.check(examine(kind()))
    assert found.status == "pass", found.reason
    assert found.evidence["key_head_of_query_head"] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", [Tiled, TurnedEinsum])
def test_tiled_heads_fail(kind: type[nn.Module]) -> None:
    found = gqa.check(examine(kind()))
    assert found.status == "fail", found.reason
    assert found.evidence["key_head_of_query_head"] == [0, 1, 0, 1, 0, 1]
    assert "h // 3" in found.reason


def test_keys_and_values_shared_differently_fail() -> None:
    found = gqa.check(examine(MixedSharing()))
    assert found.status == "fail"
    assert found.evidence["value_head_of_query_head"] == [0, 1, 0, 1, 0, 1]


def test_one_head_for_all_passes_and_equal_heads_are_not_asked() -> None:
    assert gqa.check(examine(OneForAll())).status == "pass"
    assert gqa.check(examine(Layer())).status == "not_applicable"


class Detached(Layer):
    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return q, k.detach(), v


class DataUsed(Layer):
    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return q, k, v.data


class CutAndRevived(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach().requires_grad_()


class WithoutGrad(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        with torch.no_grad():
            return scores.softmax(-1)


class Unused(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(EMBED, EMBED)


class InPlainList(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.after = [nn.Linear(EMBED, EMBED)]

    def join(self, context: Tensor) -> Tensor:
        return self.after[0](super().join(context))


class PlainTensor(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = torch.randn(EMBED, EMBED) / EMBED**0.5

    def join(self, context: Tensor) -> Tensor:
        return super().join(context) @ self.mixer


class MadeAnew(Layer):
    def join(self, context: Tensor) -> Tensor:
        return nn.Linear(EMBED, EMBED)(super().join(context))


class Overwrites(Layer):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        weights += 0.1
        return weights


class RootOfZero(Layer):
    def join(self, context: Tensor) -> Tensor:
        return super().join(context) + (context * 0).sum(-1).sqrt().sum(1)[:, :, None] * 0


class TwoZeros(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(EMBED, EMBED, bias=False)
        self.out_proj = nn.Linear(EMBED, EMBED, bias=False)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.last.weight)

    def join(self, context: Tensor) -> Tensor:
        return self.last(super().join(context))


class Huge(Layer):
    def join(self, context: Tensor) -> Tensor:
        return super().join(context) * 1e7


class InputDetached(Layer):
    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().heads(x.detach())


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        (Detached, "k_proj.weight", "k.detach()"),
        (DataUsed, "v_proj.weight", "v.data"),
        (CutAndRevived, "q_proj.weight", "detach()"),
        (WithoutGrad, "no_grad", "scores.softmax"),
        (Unused, "not used in forward", ""),
        (InPlainList, "not in module.parameters()", "self.after"),
        (PlainTensor, "not in module.parameters()", "self.mixer"),
        (MadeAnew, "made anew", "nn.Linear"),
        (Overwrites, "inplace operation", "weights += 0.1"),
        (RootOfZero, "NaN or infinite", ""),
        (TwoZeros, "two matrices in a row start at zero", ""),
        (InputDetached, "tokens of the query input", "x.detach()"),
    ],
)
def test_a_gradient_that_does_not_arrive_fails(kind: type[nn.Module], words: str, code: str) -> None:
    found = gradients.check(examine(kind()))
    assert found.status == "fail", found.reason
    assert words in found.reason
    if code:
        assert found.where is not None
        assert code in found.where.code


def test_exploding_gradients_warn() -> None:
    found = gradients.check(examine(Huge()))
    assert found.status == "warn"
    assert "explodes" in found.reason


class ZeroOutput(Layer):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)


class KeyBias(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.k_proj = nn.Linear(EMBED, EMBED)


class Frozen(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.v_proj.requires_grad_(False)


class MaskToken(Layer):
    """A parameter that only calls with a mask use."""

    def __init__(self) -> None:
        super().__init__()
        self.penalty = nn.Parameter(torch.tensor(0.3))

    def hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else super().hide(scores * self.penalty, mask)


class SinusTable(Layer):
    """A constant table is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.linalg.qr(torch.outer(torch.arange(11.0), torch.arange(11.0)).cos())[0]

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return q @ torch.eye(11), k, v


@pytest.mark.parametrize("module", [Layer(), Layer(dropout=0.4), KeyBias(), Frozen(), MaskToken(), SinusTable()])
def test_sound_layers_raise_no_alarm(module: nn.Module) -> None:
    found = gradients.check(examine(module))
    assert found.status in ("pass", "by_design"), found.reason


def test_a_projection_that_starts_at_zero_is_by_design() -> None:
    found = gradients.check(examine(ZeroOutput()))
    assert found.status == "by_design"
    assert "from step 1 on" in found.reason


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(24, 4),
        nn.MultiheadAttention(24, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True),
        nn.MultiheadAttention(24, 4, batch_first=True, kdim=10, vdim=14, dropout=0.2),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
        MultiHeadAttention(24, 4, num_kv_heads=2, rope_theta=100.0),
        MultiHeadAttention(24, 4, num_kv_heads=2, projection="fused", qkv_layout="interleaved", kernel="sdpa"),
    ],
)
@pytest.mark.parametrize("check", [gradients.check, gqa.check])
def test_libraries_raise_no_alarm(module: nn.Module, check) -> None:  # type: ignore[no-untyped-def]
    found = check(examine(module))
    assert found.status in ("pass", "by_design", "not_applicable"), found.reason


class Fused(Layer):
    """q, k and v from one matrix; `taken` says which third each of them is."""

    taken = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(EMBED, 3 * EMBED)
        del self.q_proj, self.k_proj, self.v_proj

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.qkv(x).chunk(3, -1)  # here
        q, k, v = (parts[i].view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for i in self.taken)
        return q, k, v


class ValuesAreKeys(Fused):
    taken = (0, 1, 1)


class KeysAreQueries(Fused):
    taken = (0, 0, 2)


@pytest.mark.parametrize(("kind", "third"), [(ValuesAreKeys, 2), (KeysAreQueries, 1)])
def test_a_third_that_nobody_takes_fails(kind: type[nn.Module], third: int) -> None:
    found = gradients.check(examine(kind()))
    assert found.status == "fail", found
    assert found.evidence["rows"] == [third * EMBED, (third + 1) * EMBED - 1]
    assert found.where is not None
    assert "# here" in found.where.code


def test_whole_thirds_and_their_key_bias_do_not_fail() -> None:
    assert gradients.check(examine(Fused())).status in ("pass", "by_design")


def test_sizes_of_the_matrices_are_told_where_heads_are_shared() -> None:
    shapes = gqa.check(examine(Grouped())).evidence["parameter_shapes"]
    assert shapes["k_proj.weight"] == [2 * 5, 6 * 5]
    assert shapes["q_proj.weight"] == [6 * 5, 6 * 5]
