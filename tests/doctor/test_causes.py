"""Named mistakes: every wrong module gets its name and its line, every right one gets neither."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mha_core.doctor.causes.causes import mask_cause, softmax_cause, split_cause
from tests.doctor.attention_parts import SIZES, B, D, E, H, Right, S, line, lower, marked, tokens, watch


class ViewedHeads(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], H, -1, D)  # wrong

    def join(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], -1, E)


class FoldedView(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(B * H, -1, D)  # wrong

    def join(self, context: Tensor) -> Tensor:
        return context.view(B, -1, E)


class ReshapedAfterSplit(Right):
    def split(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], -1, H, D)
        return x.reshape(x.shape[0], H, -1, D)  # wrong


class TornVectors(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], H, D, -1).transpose(2, 3)  # wrong


class OverHeads(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, H, D)  # wrong

    def join(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], -1, E)


class OverBatch(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, H, D).permute(1, 2, 0, 3)  # wrong

    def join(self, context: Tensor) -> Tensor:
        return context.permute(2, 0, 1, 3).reshape(B, -1, E)


class NotTransposedBack(Right):
    def join(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], -1, E)  # wrong


class UnfoldedOtherwise(Right):
    def split(self, x: Tensor) -> Tensor:
        return x.view(B, -1, H, D).permute(2, 0, 1, 3).reshape(H * B, -1, D)

    def join(self, context: Tensor) -> Tensor:
        return context.view(B, H, -1, D).transpose(1, 2).reshape(B, -1, E)  # wrong


class FoldedOtherwise(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q = q.reshape(B * H, -1, D)
        k = k.transpose(0, 1).reshape(B * H, -1, D)  # wrong
        return (q @ k.mT / math.sqrt(D)).view(B, H, -1, k.shape[1])


class QueryLength(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        assert context is not None
        q = self.split(self.q_proj(x))[:, :1]
        k = self.k_proj(context).view(B, x.shape[1], -1, D).transpose(1, 2)  # wrong
        v = self.v_proj(context).view(B, x.shape[1], -1, D).transpose(1, 2)
        return self.o_proj(((q @ k.mT / 2).softmax(-1) @ v)[:, :H].transpose(1, 2).reshape(B, -1, E))


SPLITS = {
    ViewedHeads: "split with view without a transpose",
    FoldedView: "split with view without a transpose",
    ReshapedAfterSplit: "split with view without a transpose",
    TornVectors: "channels of different tokens",
    OverHeads: "over the heads, not over the tokens",
    OverBatch: "over the batch",
    NotTransposedBack: "joined without a transpose",
    UnfoldedOtherwise: "unfolded in another order",
    FoldedOtherwise: "folded in the wrong order",
}


@pytest.mark.parametrize("kind", SPLITS, ids=lambda kind: kind.__name__)
def test_a_wrong_split_is_named_with_its_line(kind: type[Right]) -> None:
    trace, found = watch(kind(), tokens())
    name, place = split_cause(trace, found[0], **SIZES)
    assert SPLITS[kind] in name
    assert line(place) == marked(kind)


def test_keys_viewed_with_the_length_of_the_queries() -> None:
    trace, found = watch(QueryLength(), tokens(), tokens(2 * S))
    name, place = split_cause(trace, found[0], batch=B, q_len=S, k_len=2 * S, num_heads=H)
    assert "length of the queries" in name
    assert line(place) == marked(QueryLength)


class OverQueries(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)  # wrong


class SoftmaxOverHeads(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return F.softmax(scores, dim=1)  # wrong


class SoftmaxOverBatch(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return nn.Softmax(dim=0)(scores)  # wrong


class Twice(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return F.softmax(weights, -1)  # wrong


class FoldedSoftmax(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return F.softmax(scores.view(B * H, S, S), dim=0).view(B, H, S, S)  # wrong


class Singleton(Right):
    def weigh(self, scores: Tensor) -> Tensor:
        return F.softmax(scores.unsqueeze(-1), -1).squeeze(-1)  # wrong


SOFTMAXES = {
    OverQueries: "over the queries",
    SoftmaxOverHeads: "over the heads",
    SoftmaxOverBatch: "over the batch",
    Twice: "softmax of a softmax",
    FoldedSoftmax: "over the batch and the heads",
    Singleton: "axis of size 1",
}


@pytest.mark.parametrize("kind", SOFTMAXES, ids=lambda kind: kind.__name__)
def test_a_wrong_softmax_is_named_with_its_line(kind: type[Right]) -> None:
    trace, found = watch(kind(), tokens())
    name, place = softmax_cause(trace, found[0], **SIZES)
    assert SOFTMAXES[kind] in name
    assert line(place) == marked(kind)


class ThrownAway(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        scores.masked_fill(~keep, -1e9)  # wrong
        return scores


class TimesMask(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores * keep  # wrong


class AfterSoftmax(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        self.keep = keep
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).masked_fill(~self.keep, 0.0)  # wrong


class Weak(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores + (1.0 - keep.float()) * -1e4  # wrong


class Tiny(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep, scores, 1e-9)  # wrong


class WrongSign(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        scores[..., ~keep] = 1e9  # wrong
        return scores


class Swapped(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(keep, -1e9)  # wrong


class UpsideDown(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(torch.triu(torch.ones(S, S)) == 0, -1e9)  # wrong


class OffByOne(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        future = torch.ones(S, S).triu(0) == 1  # wrong
        return scores.masked_fill(future, -1e9)


class AlongQueries(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep[-2:-1].mT  # wrong
        return scores.masked_fill(~keep, -1e9)


class ZeroTimesInfinity(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores + (1 - keep.float()) * -torch.inf  # wrong


class AdditiveTaken(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = torch.where(keep, 0.0, -torch.inf)
        return scores + (1 - keep) * -1e9  # wrong


class FloatForFused(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        assert keep is not None
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        mask = keep.float()  # wrong
        return self.o_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class SeesOneAhead(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(S, S).triu(2).bool(), -1e9)  # wrong


class BoolAdded(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores + keep  # wrong


class FloatAdded(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return keep.float() + scores  # wrong


MASKS = {
    ThrownAway: "masked_fill is thrown away",
    TimesMask: "multiplied by the mask",
    AfterSoftmax: "after softmax",
    Weak: "-10000 is weak",
    Tiny: "nearly 0",
    WrongSign: "wrong sign",
    Swapped: "True and False are swapped",
    UpsideDown: "upside down",
    OffByOne: "may not see itself",
    AlongQueries: "along the queries",
    ZeroTimesInfinity: "NaN",
    AdditiveTaken: "hides everything",
    FloatForFused: "0 and 1 is added",
    SeesOneAhead: "one token that comes after",
    BoolAdded: "bool mask is added",
    FloatAdded: "0 and 1 is added",
}


@pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.__name__)
def test_a_wrong_mask_is_named_with_its_line(kind: type[Right]) -> None:
    trace, found = watch(kind(), tokens(), keep=lower())
    name, place = mask_cause(trace, found[0])
    assert MASKS[kind] in name
    assert line(place) == marked(kind)


def test_a_padding_mask_the_wrong_way_round_needs_what_was_asked_for() -> None:
    keep = torch.tensor([[True] * 4 + [False], [True] * 2 + [False] * 3])
    trace, found = watch(Swapped(), tokens(), keep=keep[:, None, None])
    assert mask_cause(trace, found[0]) == ("", None)
    name, place = mask_cause(trace, found[0], keep=keep)
    assert "swapped" in name
    assert line(place) == marked(Swapped)


class Repeated(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (t.reshape(B * H, -1, D) for t in (q, k))
        return torch.bmm(q, k.transpose(1, 2)) / math.sqrt(D)

    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep[:, None].expand(B, S, S).repeat(H, 1, 1)  # wrong
        return scores.masked_fill(~keep, -1e9).view(B, H, S, S)


class Interleaved(Repeated):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep[:, None].expand(B, S, S).repeat_interleave(H, 0)
        return scores.masked_fill(~keep, -1e9).view(B, H, S, S)


class MaskForTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = ~keep[:, None].expand(B, S, S)
        hidden = hidden.repeat(H, 1, 1)  # wrong
        return self.inner(x, x, x, attn_mask=hidden)[0]


@pytest.mark.parametrize("kind", [Repeated, MaskForTorch], ids=lambda kind: kind.__name__)
def test_masks_repeated_in_the_wrong_order(kind: type[nn.Module]) -> None:
    keep = torch.tensor([[True] * 4 + [False], [True] * 5])
    trace, found = watch(kind(), tokens(), keep=keep)
    name, place = mask_cause(trace, found[0])
    assert "repeat_interleave" in name
    assert line(place) == marked(kind)


class Einsums(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = (p(x).view(B, S, H, D) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.einsum("bqhd,bkhd->bhqk", q * D**-0.25, k * D**-0.25)
        if keep is not None:
            scores = scores + torch.where(keep, 0.0, -torch.inf)
        return self.o_proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(B, S, E))


class HeadsFirstFold(Right):
    def split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b s (h d) -> (h b) s d", h=H)

    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep.expand(B, 1, S, S)[:, 0].repeat(H, 1, 1)
        return scores.masked_fill(~keep, -1e9)

    def join(self, context: Tensor) -> Tensor:
        return rearrange(context, "(h b) s d -> b s (h d)", h=H)


class Loop(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        out = torch.empty(B, S, E)
        for head in range(H):
            part = slice(head * D, (head + 1) * D)
            q, k, v = self.q_proj(x)[..., part], self.k_proj(x)[..., part], self.v_proj(x)[..., part]
            scores = q @ k.mT / D**0.5
            if keep is not None:
                scores.masked_fill_(~keep.expand(B, 1, S, S)[:, 0], -1e9)
            out[..., part] = scores.softmax(-1) @ v
        return self.o_proj(out)


class Renormalised(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        self.keep = keep
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        if hasattr(self, "keep"):
            weights = weights * self.keep
            weights = weights / weights.sum(-1, keepdim=True)
        return weights


class ZeroedEmptyRows(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        self.keep = keep
        return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)

    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights.masked_fill(~self.keep, 0.0) if hasattr(self, "keep") else weights


class TimesThenLow(Right):
    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        keep = keep.to(scores.dtype)
        return scores * keep - 1e10 * (1 - keep)


class KeysFirst(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = k @ q.mT / D**0.5
        if keep is not None:
            scores = scores.masked_fill(~keep.mT, -torch.inf)
        return self.o_proj(self.join(scores.softmax(-2).mT @ v))


class Rotary(Right):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        angle = torch.arange(S)[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
        q, k = (t * angle.cos() + torch.cat((-t[..., D // 2 :], t[..., : D // 2]), -1) * angle.sin() for t in (q, k))
        return q @ k.mT * D**-0.5


class Fused(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


class MultiQuery(Right):
    """One key head; the query heads lie among the rows."""

    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q = self.q_proj(x).view(B, S * H, D)
        k, v = self.k_proj(x)[..., :D], self.v_proj(x)[..., :D]
        scores = q @ k.mT / D**0.5
        if keep is not None:
            scores = scores.masked_fill(~keep.expand(B, 1, S, S)[:, 0].repeat_interleave(H, 1), -1e9)
        return self.o_proj((scores.softmax(-1) @ v).view(B, S, E))


class SequenceFirst(Right):
    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        x = x.transpose(0, 1)
        q, k, v = (p(x).reshape(S, B * H, D).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, S, S) / D**0.5
        scores = scores if keep is None else self.hide(scores, keep)
        mixed = torch.bmm(scores.softmax(-1).view(B * H, S, S), v)
        return self.o_proj(mixed.transpose(0, 1).reshape(S, B, E)).transpose(0, 1)


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        mask = None if keep is None else ~keep.expand(B, 1, S, S)[:, 0].repeat_interleave(H, 0)
        return self.inner(x, x, x, attn_mask=mask)[0]


RIGHT = [Right, Einsums, HeadsFirstFold, Loop, Renormalised, ZeroedEmptyRows, TimesThenLow, KeysFirst, Rotary, Fused]
RIGHT += [MultiQuery, SequenceFirst, Torch, Interleaved]


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_right_modules_have_no_mistake(kind: type[nn.Module], mask: str) -> None:
    padding = torch.tensor([[True] * 4 + [False], [True] * 2 + [False] * 3])[:, None, None]
    if kind is Interleaved:
        padding = padding[:, 0, 0]
        if mask != "padding":
            return
    trace, found = watch(kind(), tokens(), keep={"none": None, "causal": lower(), "padding": padding}[mask])
    assert found
    for core in found:
        assert split_cause(trace, core, **SIZES) == ("", None)
        assert softmax_cause(trace, core, **SIZES) == ("", None)
        assert mask_cause(trace, core) == ("", None)
