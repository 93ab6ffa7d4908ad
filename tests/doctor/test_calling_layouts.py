"""Maps, tuples, one query at a time, masks that replace the causal one: called as such, and found sound."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_core.doctor.calls import layout
from mha_core.doctor.calls.mask_words import documented
from mha_core.doctor.checkup import checkup
from mha_core.doctor.subject import examine
from mha_core.errors import MhaError

E, H, B, S = 16, 2, 3, 6


class Photo(nn.Module):
    """Attention between the pixels of an image, by 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(E, E, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        q, k, v = (part(x).flatten(2).transpose(1, 2) for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, c, height, width)


class Signal(nn.Module):
    """Channels first, (B, E, S)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv1d(E, E, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).transpose(1, 2) for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class Cross(nn.Module):
    """Rows and columns of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.col = (nn.MultiheadAttention(E, H, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        rows, cols = x.reshape(b * h, w, c), x.transpose(1, 2).reshape(b * w, h, c)
        along = self.row(rows, rows, rows)[0].reshape(b, h, w, c)
        return along + self.col(cols, cols, cols)[0].reshape(b, w, h, c).transpose(1, 2)


class Reduced(nn.Module):
    """Keys of a map made smaller, whose sides are arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))
        self.smaller = nn.Conv2d(E, E, 2, stride=2)

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:  # noqa: N803 (as such layers spell it)
        b, _, c = x.shape
        memory = self.smaller(x.transpose(1, 2).reshape(b, c, H, W)).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory))


class InATuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        q, k, v = inputs
        return F.scaled_dot_product_attention(self.q(q), self.k(k), self.v(v))


class OneState(nn.Module):
    """A decoder's state, (B, 1, E), over what was encoded; the keys are the values too."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, 1)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.v(torch.tanh(self.q(query) + self.k(keys))).squeeze(2).unsqueeze(1)
        weights = scores.softmax(-1)
        return weights @ keys, weights


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(E, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.score(x).softmax(1) * x).sum(1)


class Replaced(nn.Module):
    """Without a mask the past alone is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / E**0.5
        if mask is None:
            mask = torch.full(scores.shape[-2:], float("-inf")).triu(1)
        return (scores + mask).softmax(-1) @ self.v(x)


class Lost(Replaced):
    """A mask over padding that throws causality away."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / E**0.5
        if padding_mask is None:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
        else:
            scores = scores.masked_fill(padding_mask[:, None], float("-inf"))
        return scores.softmax(-1) @ self.v(x)


def alarms(module: nn.Module) -> dict[str, str]:
    torch.manual_seed(0)
    found = checkup(module, only=["reach", "batch_independence", "causality", "padding", "cross_attention", "decode"])
    return {result.id: result.reason for result in found.checks if result.status in ("fail", "warn")}


@pytest.mark.parametrize("kind", [Photo, Signal, Cross, Reduced, InATuple, OneState, Replaced])
def test_sound_layers_of_unusual_shapes_are_called_and_not_blamed(kind: type[nn.Module]) -> None:
    assert alarms(kind()) == {}


def test_a_map_is_folded_as_a_person_would() -> None:
    layer = Photo().eval()
    subject = examine(layer)
    inputs = subject.inputs(B, S)
    image = torch.stack([inputs.query[:, place] for place in range(S)], -1).view(B, E, 2, 3)
    expected = torch.stack([layer(image)[:, :, place // 3, place % 3] for place in range(S)], 1)
    assert torch.allclose(subject.call(inputs).output, expected, atol=1e-6)


@pytest.mark.parametrize(("tokens", "sides"), [(7, (1, 7)), (6, (2, 3)), (8, (2, 4)), (12, (2, 6)), (16, (4, 4))])
def test_sides_of_a_map(tokens: int, sides: tuple[int, int]) -> None:
    assert layout.sides(tokens) == sides


def test_tensors_in_one_tuple_are_told_apart() -> None:
    layer = InATuple().eval()
    subject = examine(layer)
    inputs = subject.inputs(B, S, 5)
    assert torch.equal(subject.call(inputs).output, layer((inputs.query, inputs.key, inputs.value)))


def test_one_query_at_a_time_gives_every_row() -> None:
    layer = OneState().eval()
    subject = examine(layer)
    inputs = subject.inputs(B, S, 5)
    answer = subject.call(inputs)
    rows = torch.cat([layer(inputs.query[:, row : row + 1], inputs.key)[0] for row in range(S)], 1)
    assert torch.equal(answer.output, rows)
    assert answer.weights is not None
    assert answer.weights.shape == (B, S, 5)


def test_pooling_is_refused_and_not_blamed() -> None:
    with pytest.raises(MhaError, match="pools"):
        examine(Pool())


def test_a_mask_that_replaces_the_causal_one_is_given_whole() -> None:
    layer = Replaced().eval()
    subject = examine(layer)
    inputs = subject.inputs(B, S)
    keep = torch.ones(B, S, dtype=torch.bool)
    keep[0, -2:] = False
    whole = torch.zeros(B, S, S).masked_fill(~(keep[:, None] & torch.ones(S, S, dtype=torch.bool).tril()), -torch.inf)
    assert torch.allclose(subject.call(inputs, keep_keys=keep).output, layer(inputs.query, whole), atol=1e-6)


def test_a_padding_mask_must_not_lose_causality() -> None:
    assert "causality" in alarms(Lost())


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("mask: (B, S), 1.0 for real tokens, 0.0 for padding", "keep"),
        ("mask: 1.0 for padding, 0.0 for real tokens", "hide"),
        ("mask: (B, S), 1 keep / 0 pad, or an additive 4-D mask", "keep"),
        ("mask: additive, 0 for visible keys and -inf for others", "add"),
    ],
)
def test_polarity_is_read_from_words(words: str, kinds: str) -> None:
    class Told(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return x

    Told.forward.__doc__ = words
    assert inspect.getdoc(Told.forward) == words
    assert documented(Told(), "mask")[0] == kinds


@pytest.mark.parametrize(("key", "value"), [(11, 13), (5, 7)])
def test_widths_that_are_primes_leave_lengths_to_probe_with(key: int, value: int) -> None:
    subject = examine(nn.MultiheadAttention(18, 3, kdim=key, vdim=value))
    assert subject.assumed["padding_mask"] == "key_padding_mask (B, Sk), True = hidden"
    assert subject.assumed["pair_mask"] == "attn_mask (Sq, Sk), True = hidden"


def test_a_stack_of_layers_passes_empty_rows_on_by_design() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 20, batch_first=True)
    report = checkup(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), only=["fully_masked"])
    assert [result.status for result in report.checks] != ["fail"]
