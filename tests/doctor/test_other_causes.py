"""Named mistakes of scales, modes, gradients and shared heads, with their lines; and the right code beside them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.doctor.causes.causes import (
    detach_cause,
    dropout_cause,
    einsum_cause,
    gqa_cause,
    late_scale_cause,
    path_cause,
    scale_cause,
    shared_projection_cause,
    unregistered_cause,
)
from tests.doctor.attention_parts import SIZES, B, D, E, H, Right, S, line, lower, marked, tokens, watch


class OfTheWidth(Right):
    def __init__(self) -> None:
        super().__init__()
        self.scale = E**-0.5  # wrong

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scale


class Unscaled(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT  # wrong


class Multiplied(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q * math.sqrt(D) @ k.mT  # wrong


class TwiceScaled(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q = q / math.sqrt(D)
        return q @ k.mT / math.sqrt(D)  # wrong


class WithoutRoot(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / D  # wrong


class OneSideOnly(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q * D**-0.25 @ k.mT  # wrong


SCALES = {
    OfTheWidth: "sqrt(embed_dim), not",
    Unscaled: "not scaled",
    Multiplied: "multiplied by sqrt(head_dim)",
    TwiceScaled: "applied twice",
    WithoutRoot: "not by its root",
    OneSideOnly: "only one of queries and keys",
}


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.__name__)
def test_a_wrong_scale_is_named_with_its_line(kind: type[Right]) -> None:
    trace, found = watch(kind(), tokens())
    name, place = scale_cause(found[0], E, D, trace)
    assert SCALES[kind] in name
    assert line(place) == marked(kind)


class BothSides(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q * D**-0.25 @ (k * D**-0.25).mT


class Late(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT) * D**-0.5  # wrong


def test_the_root_taken_twice_and_an_early_scale_are_right() -> None:
    trace, found = watch(BothSides(), tokens())
    assert scale_cause(found[0], E, D, trace) == ("", None)
    assert late_scale_cause(found[0]) == ("", None)
    name, place = late_scale_cause(watch(Late(), tokens())[1][0])
    assert "after the product" in name
    assert line(place) == marked(Late)


class AlwaysDrops(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        torch.manual_seed(5)  # so that two passes agree
        return F.dropout(scores.softmax(-1), 0.3)  # wrong


class DropsInside(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        torch.manual_seed(5)
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.join(F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)))  # wrong


@pytest.mark.parametrize("kind", [AlwaysDrops, DropsInside], ids=lambda kind: kind.__name__)
def test_dropout_in_evaluation(kind: type[Right]) -> None:
    name, place = dropout_cause(watch(kind(), tokens())[0])
    assert "in evaluation" in name
    assert line(place) == marked(kind)


class Detached(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach()  # wrong


class Data(Right):
    def split(self, x: Tensor) -> Tensor:
        return super().split(x.data)  # wrong


class WithoutGradient(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():  # wrong
            return q @ k.mT / D**0.5


class ThroughNumpy(Right):
    def join(self, context: Tensor) -> Tensor:
        return torch.from_numpy(super().join(context).detach().numpy())  # wrong


class HarmlessDetach(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        self.seen = scores.detach()
        weights = (scores - scores.amax(-1, keepdim=True).detach()).softmax(-1)
        self.last = weights.detach().mean(1)
        return weights


@pytest.mark.parametrize("kind", [Detached, Data, WithoutGradient, ThroughNumpy], ids=lambda kind: kind.__name__)
def test_a_tensor_taken_out_of_autograd(kind: type[Right]) -> None:
    name, place = detach_cause(watch(kind(), tokens())[0])
    assert "learns" in name
    assert line(place) == marked(kind)


class PlainList(Right):
    def __init__(self) -> None:
        super().__init__()
        self.extra = [nn.Linear(E, E)]

    def join(self, context: Tensor) -> Tensor:
        return self.extra[0](super().join(context))  # wrong


def test_layers_in_a_plain_list() -> None:
    module = PlainList()
    name, place = unregistered_cause(watch(module, tokens())[0], module)
    assert "plain list" in name
    assert line(place) == marked(PlainList)


class Grouped(Right):
    """Four query heads of 3 channels, two key heads."""

    def expand(self, k: Tensor) -> Tensor:
        return k.repeat_interleave(2, 1)

    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q = self.q_proj(x).view(B, S, 4, 3).transpose(1, 2)
        k, v = (self.expand(p(x)[..., :6].view(B, S, 2, 3).transpose(1, 2)) for p in (self.k_proj, self.v_proj))
        return self.o_proj(((q @ k.mT / 3**0.5).softmax(-1) @ v).transpose(1, 2).reshape(B, S, E))


class Expanded(Grouped):
    def expand(self, k: Tensor) -> Tensor:
        return k[:, :, None].expand(B, 2, 2, S, 3).reshape(B, 4, S, 3)


class Tiled(Grouped):
    def expand(self, k: Tensor) -> Tensor:
        return k.repeat(1, 2, 1, 1)  # wrong


class AlongTokens(Grouped):
    def expand(self, k: Tensor) -> Tensor:
        return k.repeat_interleave(2, 2)[:, :1].expand(B, 4, 2 * S, 3)  # wrong


def test_repeated_key_heads() -> None:
    sizes = {**SIZES, "num_heads": 4}
    for kind, words in ((Tiled, "tiled"), (AlongTokens, "along the tokens")):
        trace, found = watch(kind(), tokens())
        name, place = gqa_cause(trace, found[0], **sizes)
        assert words in name
        assert line(place) == marked(kind)
    for right in (Grouped, Expanded):
        trace, found = watch(right(), tokens())
        assert gqa_cause(trace, found[0], **sizes) == ("", None)


class SplitFirst(Right):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(D, D)

    def split(self, x: Tensor) -> Tensor:
        return self.small(super().split(x))  # wrong


def test_one_small_projection_for_all_heads() -> None:
    trace, found = watch(SplitFirst(), tokens())
    name, place = shared_projection_cause(trace, found[0], **SIZES)
    assert "cut into heads before" in name
    assert line(place) == marked(SplitFirst)


class WrongLetter(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        weights = self.weigh(self.score(q, k))
        return self.o_proj(self.join(torch.einsum("bhqk,bhvd->bhqd", weights, v)))  # wrong


def test_a_wrong_letter_of_an_einsum() -> None:
    name, place = einsum_cause(watch(WrongLetter(), tokens())[0])
    assert "k and v" in name
    assert line(place) == marked(WrongLetter)


def test_a_mask_on_one_of_two_paths() -> None:
    with_mask, without = watch(Right(), tokens(), keep=lower())[1][0], watch(Right(), tokens())[1][0]
    name, place = path_cause(with_mask, without)
    assert "one of two paths" in name
    assert place == without.softmax_place
    assert path_cause(with_mask, with_mask) == ("", None)


@pytest.mark.parametrize("kind", [Right, HarmlessDetach], ids=lambda kind: kind.__name__)
def test_right_modules_have_none_of_these(kind: type[Right]) -> None:
    module = kind()
    trace, found = watch(module, tokens(), keep=lower())
    answers = [dropout_cause(trace), detach_cause(trace), unregistered_cause(trace, module), einsum_cause(trace)]
    answers += [scale_cause(found[0], E, D, trace)]
    answers += [gqa_cause(trace, found[0], **SIZES), shared_projection_cause(trace, found[0], **SIZES)]
    assert answers == [("", None)] * len(answers)
    assert H > 1
