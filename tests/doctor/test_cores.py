"""Attention is found whatever it is written with; its tensors are those the module used, in one orientation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.doctor.traces.cores import Core
from tests.doctor.attention_parts import B, D, E, H, Right, S, line, lower, marked, tokens, watch


class Projected(Right):
    """A layer whose subclasses write the middle: q, k, v (B, H, S, D) -> context (B, H, S, D)."""

    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(context)), self.split(self.v_proj(context))
        return self.o_proj(self.join(self.middle(q, k, v)))


class Matmul(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(F.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D), dim=-1), v)  # wrong


class Bmm(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.reshape(B * H, -1, D) for t in (q, k, v))
        weights = nn.Softmax(dim=2)(torch.bmm(q, k.transpose(1, 2)) * D**-0.5)
        return torch.bmm(weights, v).view(B, H, -1, D)


class Baddbmm(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.reshape(B * H, -1, D) for t in (q, k, v))
        scores = torch.baddbmm(torch.empty(1, 1, 1), q, k.mT, beta=0, alpha=D**-0.5)
        return (scores.view(B, H, *scores.shape[1:]).softmax(-1).view_as(scores) @ v).view(B, H, -1, D)


class TorchEinsum(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhqd,bhkd->bhqk", q / D**0.25, k / D**0.25).softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class KeysBeforeQueries(Projected):
    """Scores (B, keys, queries, H), softmax over the keys: right, and in no usual order."""

    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(torch.einsum("bhkd,bhqd->bkqh", k, q) * D**-0.5, 1)
        return torch.einsum("bkqh,bhkd->bhqd", weights, v)


class EinopsEinsum(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = einsum(q * D**-0.5, k, "b h i d, b h j d -> b h i j").softmax(dim=-1)
        return einsum(weights, v, "b h i j, b h j d -> b h i d")


class ScaleTensor(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / torch.sqrt(torch.FloatTensor([D]))).softmax(-1) @ v


class InPlace(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores /= math.sqrt(D)
        return scores.softmax(-1) @ v


class LogSoftmax(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.log_softmax(q @ k.mT / math.sqrt(D), -1).exp() @ v


class ByHand(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(D)
        raised = torch.exp(scores - scores.amax(-1, keepdim=True))
        return raised / raised.sum(-1, keepdim=True) @ v


class BroadcastProduct(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(D)).softmax(-1) @ v


class Fused(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class HalfSoftmax(Projected):
    def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax((q @ k.mT) * D**-0.5, dim=-1, dtype=torch.float64).to(v.dtype) @ v


WAYS = [Matmul, Bmm, Baddbmm, TorchEinsum, KeysBeforeQueries, EinopsEinsum, ScaleTensor, InPlace, LogSoftmax]
WAYS += [ByHand, BroadcastProduct, Fused, HalfSoftmax]


def flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(B * H, *tensor.shape[-2:])


@pytest.mark.parametrize("k_len", [S, S + 2], ids=["self", "cross"])
@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
def test_every_way_of_writing_attention_is_found(kind: type[Projected], k_len: int) -> None:
    layer, x, context = kind(), tokens(), tokens(k_len)
    _, found = watch(layer, x, context)
    assert len(found) == 1
    core = found[0]
    q, k, v = layer.split(layer.q_proj(x)), layer.split(layer.k_proj(context)), layer.split(layer.v_proj(context))
    reference = q @ k.transpose(-2, -1) / 2  # D = 4
    assert core.factor == pytest.approx(0.5)
    assert core.dim == -1
    assert core.fill is None
    assert core.bias is None
    assert torch.allclose(_centred(flat(core.scores).float()), _centred(flat(reference)), atol=1e-5)
    assert torch.allclose(flat(core.weights).float(), flat(reference.softmax(-1)), atol=1e-5)
    assert torch.allclose(flat(core.v), flat(v), atol=1e-5)
    ratio = flat(core.q @ core.k.transpose(-2, -1)) / flat(q @ k.transpose(-2, -1))
    assert torch.allclose(ratio, ratio[0, 0, 0].expand_as(ratio), rtol=1e-3)


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True)


def test_places_are_the_lines_of_the_module() -> None:
    _, found = watch(Matmul(), tokens())
    places = (found[0].scores_place, found[0].softmax_place, found[0].values_place)
    assert {line(place) for place in places} == {marked(Matmul)}
    assert [line(place) for _, place in found[0].factors] == [marked(Matmul)]
    assert found[0].mask_place is None


class Masked(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(keep == 0, -1e9)  # wrong


class Added(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores + (1 - keep.float()) * -1e9  # wrong


class Written(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        scores[:, :, ~keep] = -1e9  # wrong
        return scores


class Chosen(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep, scores, torch.tensor(-1e9))  # wrong


class Times(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores * keep.float()  # wrong


@pytest.mark.parametrize("kind", [Masked, Added, Written, Chosen, Times], ids=lambda kind: kind.__name__)
def test_the_fill_the_hidden_positions_and_the_line_of_a_mask(kind: type[Right]) -> None:
    _, found = watch(kind(), tokens(), keep=lower())
    core = found[0]
    assert core.fill == (0.0 if kind is Times else -1e9)
    assert core.hidden is not None
    assert torch.equal(core.hidden, (~lower()).expand(B, H, S, S))
    assert line(core.mask_place) == marked(kind)
    assert core.factor == pytest.approx(0.5)
    assert core.bias is None


class Biased(Right):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(H, S, S))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT + self.table) * D**-0.5


def test_a_bias_is_told_from_a_mask_and_scaled_as_it_was() -> None:
    layer = Biased()
    _, found = watch(layer, tokens(), keep=lower())
    core = found[0]
    assert core.bias is not None
    assert torch.allclose(core.bias.float(), (layer.table / 2).expand(B, H, S, S), atol=1e-6)
    assert core.fill == -math.inf
    assert core.factor == pytest.approx(0.5)


class Learned(Right):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([0.5]))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.temperature.exp()


class Buffered(Right):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.25))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return 2 * q @ (k * self.scale).mT / 3


class Rotated(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        angle = torch.arange(S)[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
        q, k = (t * angle.cos() + torch.cat((-t[..., 2:], t[..., :2]), -1) * angle.sin() for t in (q * 0.7, k))
        return q @ k.mT


class Capped(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return 20 * torch.tanh(q @ k.mT / math.sqrt(D) / 20)


class Mixed(Right):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(H, H)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.mix((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


FACTORS = {Learned: None, Buffered: 1 / 6, Rotated: 0.7, Capped: 0.5, Mixed: None}


@pytest.mark.parametrize("kind", FACTORS, ids=lambda kind: kind.__name__)
def test_the_factor_counts_numbers_and_leaves_learned_scales_open(kind: type[Right]) -> None:
    _, found = watch(kind(), tokens())
    wanted = FACTORS[kind]
    assert found[0].factor == (None if wanted is None else pytest.approx(wanted, rel=1e-4))


class Softmaxed(Right):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(self.dim)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_the_axis_of_softmax_is_told(dim: int) -> None:
    _, found = watch(Softmaxed(dim), tokens())
    assert found[0].dim == dim - 4


class Dropped(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        weights = weights * torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
        return weights / weights.sum(-1, keepdim=True)


def test_used_weights_are_what_multiplied_the_values() -> None:
    _, found = watch(Dropped(), tokens())
    core = found[0]
    assert bool((core.used_weights[..., 2] == 0).all())
    assert bool((core.weights[..., 2] > 0).all())
    assert torch.allclose(core.used_weights.sum(-1), torch.ones(B, H, S))


class Heads(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        parts = []
        for q, k, v in zip(*(p(x).chunk(H, -1) for p in (self.q_proj, self.k_proj, self.v_proj)), strict=True):
            parts.append((q @ k.mT / D**0.5).softmax(-1) @ v)
        return self.o_proj(torch.cat(parts, -1))


def test_a_loop_over_heads_gives_one_core_per_head() -> None:
    layer, x = Heads(), tokens()
    _, found = watch(layer, x)
    assert len(found) == H
    heads = layer.q_proj(x).chunk(H, -1)
    assert all(torch.equal(core.q, head) for core, head in zip(found, heads, strict=True))


class Grouped(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q_proj(x)), self.k_proj(x)[:, None, :, :D], self.v_proj(x)[:, None, :, :D]
        mixed = F.scaled_dot_product_attention(q, k.expand(B, 1, S, D), v, attn_mask=keep, scale=0.3, enable_gqa=True)
        return self.o_proj(self.join(mixed))


def test_scores_of_the_fused_call_are_computed_again() -> None:
    layer, x = Grouped(), tokens()
    _, found = watch(layer, x, keep=lower())
    core = found[0]
    q, k = layer.split(layer.q_proj(x)), layer.k_proj(x)[:, None, :, :D]
    scores = (0.3 * q @ k.mT).masked_fill(~lower(), -math.inf)
    assert core.kind == "sdpa"
    assert core.factor == pytest.approx(0.3)
    assert core.fill == -math.inf
    assert torch.allclose(core.scores, scores, atol=1e-6)
    assert torch.allclose(core.weights, scores.softmax(-1), atol=1e-6)


def test_the_causal_flag_of_the_fused_call_counts_from_the_top_left() -> None:
    class Causal(Projected):
        def middle(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    _, found = watch(Causal(), tokens(), tokens(S + 2))
    seen = found[0].weights[0, 0] > 0
    assert torch.equal(seen, torch.ones(S, S + 2).tril().bool())


@pytest.mark.parametrize("weights", [True, False])
def test_the_layer_of_torch(weights: bool) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(E, H, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(S, S).triu(1).bool()
            return self.inner(x, x, x, need_weights=weights, average_attn_weights=False, attn_mask=mask)[0]

    layer, x = Wrapped(), tokens()
    _, found = watch(layer, x)
    core: Core = found[0]
    wanted = layer.inner(x, x, x, average_attn_weights=False, attn_mask=torch.ones(S, S).triu(1).bool())[1]
    assert len(found) == 1
    assert core.kind == ("softmax" if weights else "sdpa")
    assert core.factor == pytest.approx(0.5)
    assert core.fill == -math.inf
    assert torch.allclose(flat(core.weights), flat(wanted), atol=1e-6)


class Ours(nn.Module):
    def __init__(self, **choices: Any) -> None:
        super().__init__()
        self.inner = MultiHeadAttention(E, H, **choices)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize("choices", [{}, {"kernel": "chunked"}, {"kernel": "sdpa"}, {"rope_theta": 1e4}], ids=str)
def test_the_layer_of_this_project(choices: dict[str, Any]) -> None:
    """Its kernels write weights over scores."""
    with torch.no_grad():
        _, found = watch(Ours(**choices), tokens())
    assert len(found) == 1
    core = found[0]
    assert core.factor == pytest.approx(0.5)
    assert torch.allclose(core.scores, core.q @ core.k.mT / 2, atol=1e-5)
    assert torch.allclose(core.weights, core.scores.softmax(-1), atol=1e-5)


class Additive(nn.Module):
    """Bahdanau's scores are no product: nothing to find, and nothing to stumble over."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(E, 7), nn.Linear(E, 7), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.v(torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])).squeeze(-1)
        return scores.softmax(-1) @ x


def test_what_is_no_attention_by_products_is_not_taken_for_it() -> None:
    assert watch(Additive(), tokens())[1] == ()


def test_rearranged_heads_give_the_same_core_as_a_view() -> None:
    class Rearranged(Right):
        def split(self, x: Tensor) -> Tensor:
            return rearrange(x, "b s (h d) -> b h s d", h=H)

    torch.manual_seed(1)
    first = watch(Right(), tokens())[1][0]
    torch.manual_seed(1)
    second = watch(Rearranged(), tokens())[1][0]
    assert torch.equal(first.scores, second.scores)
