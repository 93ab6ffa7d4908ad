"""What the person says, what a module says of itself, and how a call can be written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mha_core.doctor.calls.causal_signs import declared_causal
from mha_core.doctor.calls.mask_words import ADDED, HIDING, KEEPING, documented, written_shapes
from mha_core.doctor.calls.roles import role_of
from mha_core.doctor.calls.signs import position_signs
from mha_core.doctor.subject import CALL_NAMES, Mode, ModuleFailure, examine
from mha_core.errors import MhaError
from tests.doctor import calling_layers as layers
from tests.doctor.calling_layers import H, truth

KEYS = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], dtype=torch.bool)
TRIL = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "call",
    [
        "module(x, mask=keep.unsqueeze(1) if keep is not None else None)",
        "m(x, mask=None if hide is None else ~hide[:, None])",
        "module(x, mask=None if additive is None else additive.unsqueeze(1) > -1)",
        lambda module, x, keep: module(x, None if keep is None else keep.unsqueeze(1)),
    ],
)
def test_a_call_with_masks_over_pairs(call: object) -> None:
    layer = layers.KeepFour().eval()
    subject = examine(layer, call=call)  # type: ignore[arg-type]
    assert subject.key_mask
    assert subject.pair_mask
    assert subject.sample_pair_mask
    inputs = subject.inputs(2, 5)
    expected = truth(layer, *vars(inputs).values(), KEYS[:, None] & TRIL)
    assert torch.allclose(subject.call(inputs, keep_keys=KEYS, keep_pairs=TRIL).output, expected, atol=1e-5)


def test_a_call_with_a_mask_over_keys_only() -> None:
    layer = layers.HideKeys().eval()
    subject = examine(layer, call="module(x, pad_mask=hide_keys)")
    assert subject.key_mask
    assert not subject.pair_mask
    inputs = subject.inputs(2, 5)
    expected = truth(layer, *vars(inputs).values(), KEYS[:, None].expand(2, 5, 5))
    assert torch.allclose(subject.call(inputs, keep_keys=KEYS).output, expected, atol=1e-5)
    with pytest.raises(ModuleFailure):
        subject.call(inputs, keep_pairs=TRIL)


def test_a_call_of_three_tensors_and_of_a_context() -> None:
    layer = layers.ValueKeyQuery().eval()
    subject = examine(layer, call="module(v, k, q, None)")
    inputs = subject.inputs(2, 3, 5)
    assert (subject.takes, subject.can_cross, subject.key_mask) == ("qkv", True, False)
    assert torch.allclose(subject.call(inputs).output, truth(layer, *vars(inputs).values()), atol=1e-5)
    assert examine(layers.Context(), call="module(x, context)").takes == "context"


def test_a_call_can_supply_what_nobody_knows() -> None:
    layer = layers.Stranger().eval()
    subject = examine(layer, call="module(x, torch.tensor(2.0))")
    inputs = subject.inputs(2, 5)
    assert torch.allclose(subject.call(inputs).output, 2 * truth(layer, *vars(inputs).values()), atol=1e-5)
    assert subject.assumed["calls"] == "module(x, torch.tensor(2.0))"


@pytest.mark.parametrize("call", ["module(x, tokens)", "module(x,", "import os"])
def test_a_call_that_cannot_be_understood(call: str) -> None:
    with pytest.raises(MhaError) as caught:
        examine(layers.Plain(), call=call)
    assert caught.value.field == "call"


def test_every_name_of_a_call_is_given() -> None:
    wanted = ", ".join(CALL_NAMES)
    subject = examine(layers.Plain(), call=f"[module(x), ({wanted})][0]")
    assert subject.call(subject.inputs(2, 5), mode=Mode(weights=True)).output.shape == (2, 5, 24)


def test_what_is_given_is_believed() -> None:
    subject = examine(layers.Plain(), embed_dim=24, num_heads=2, num_kv_heads=1, causal=True, batch_first=True)
    assert (subject.num_heads, subject.num_kv_heads, subject.expects_causal) == (2, 1, True)
    assert subject.assumed["batch_first is"] == "given"


NAMES = {
    "x": "tokens", "hidden_states": "tokens", "src": "tokens", "q": "query", "queries": "query", "Q": "query",
    "keys": "key", "V": "value", "memory": "context", "encoder_hidden_states": "context",
    "key_value_states": "context", "attn_mask": "mask", "attention_mask": "mask", "src_key_padding_mask": "mask",
    "padding_mask": "mask", "valid_lens": "lengths", "lengths": "lengths", "need_weights": "weights",
    "return_attn": "weights", "output_attentions": "weights", "is_causal": "causal", "past_key_values": "cache",
    "layer_past": "cache", "kv_cache": "cache", "use_cache": "use_cache", "position_embeddings": "rotary",
    "freqs_cis": "rotary", "position_ids": "positions", "cache_position": "positions", "start_pos": "positions",
    "head_mask": "head_mask", "wavelength": "",
}  # fmt: skip


@pytest.mark.parametrize(("name", "role"), NAMES.items())
def test_roles_by_name(name: str, role: str) -> None:
    assert role_of(name) == role


WORDS = {
    "mask: (B, S), 1 for real tokens and 0 for padding": (KEEPING, ("(B, Sk)",)),
    "mask: (batch, seq_len), True marks padding": (HIDING, ("(B, Sk)",)),
    "mask: (B, 1, S, S) bool, True = may attend": (KEEPING, ("(B, 1, Sq, Sk)",)),
    "mask: (S, S), positions with True are not allowed to attend": (HIDING, ("(Sq, Sk)",)),
    "mask: padding elements are indicated by 1s": (HIDING, ()),
    "mask: 0/-inf of shape (1, 1, L, L), added to the scores": (ADDED, ("(1, 1, Sq, Sk)",)),
    "mask: (B, S), True for source tokens, False for padding": (KEEPING, ("(B, Sk)",)),
    "mask: True at valid (non-padded) places": (KEEPING, ()),
    "mask: zeros are ignored": (KEEPING, ()),
    "mask: 1 for tokens that are not masked, 0 for masked ones": (KEEPING, ()),
    "mask: True where the token is not to be ignored": (KEEPING, ()),
    "mask: True takes part": (KEEPING, ()),
    "mask: (B, 1, L) 0 where attention is blocked": (KEEPING, ("(B, 1, Sk)",)),
    "mask: optional mask": ((), ()),
}


@pytest.mark.parametrize(("words", "told"), WORDS.items())
def test_documentation_of_a_mask(words: str, told: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    kind = type("Documented", (nn.Module,), {"__doc__": words, "forward": lambda self, x, mask=None: x})
    assert (documented(kind(), "mask"), written_shapes(kind(), "mask")) == told


class CausalSelfAttention(layers.Plain):
    pass


class NonCausalAttention(layers.Plain):
    pass


class TriangleInForward(layers.Plain):
    def forward(self, x):
        keep = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        return self.attend(x, x, x, keep)[0]


class TriangleIfAsked(layers.Plain):
    def forward(self, x, causal=False):
        keep = torch.tril(torch.ones(x.shape[1], x.shape[1])) if causal else None
        return self.attend(x, x, x, keep)[0]


class TriangleWithoutMask(layers.Plain):
    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        return self.attend(x, x, x, mask)[0]


def with_buffer(buffer: torch.Tensor, **flags: bool) -> nn.Module:
    layer = layers.Plain()
    layer.register_buffer("mask", buffer)
    for name, value in flags.items():
        setattr(layer, name, value)
    return layer


ONES = torch.ones(9, 9)
CAUSAL = {
    "name": (CausalSelfAttention(), True),
    "not by name": (NonCausalAttention(), None),
    "in forward": (TriangleInForward(), True),
    "if asked": (TriangleIfAsked(), None),
    "without a mask": (TriangleWithoutMask(), True),
    "nothing": (layers.Plain(), None),
    "tril": (with_buffer(ONES.tril()[None, None]), True),
    "triu": (with_buffer(ONES.triu(1).bool()), True),
    "additive": (with_buffer(torch.full((9, 9), float("-inf")).triu(1)), True),
    "off by one": (with_buffer(ONES.tril(1)), True),
    "window": (with_buffer(ONES.tril() * ONES.triu(-2)), True),
    "both sides": (with_buffer(ONES.tril(2) * ONES.triu(-2)), None),
    "distances": (with_buffer((torch.arange(9)[:, None] - torch.arange(9)).abs()), None),
    "switched off": (with_buffer(ONES.tril(), causal=False), False),
    "switched on": (with_buffer(ONES, is_causal=True), True),
}


@pytest.mark.parametrize("what", CAUSAL)
def test_signs_of_causality(what: str) -> None:
    layer, expected = CAUSAL[what]
    assert declared_causal(layer) is expected


def with_part(name: str, part: object) -> nn.Module:
    layer = layers.Plain()
    setattr(layer, name, part)
    return layer


POSITIONS = {
    "rotary": with_part("inv_freq", torch.ones(3)),
    "alibi": with_part("slopes", torch.ones(H)),
    "relative bias": with_part("relative_position_bias_table", nn.Parameter(torch.ones(9, H))),
    "learned positions": with_part("pos_emb", nn.Embedding(9, 24)),
    "conv": with_part("mix", nn.Conv1d(24, 24, 3, padding=1)),
}


@pytest.mark.parametrize("sign", POSITIONS)
def test_signs_of_positions(sign: str) -> None:
    assert position_signs(POSITIONS[sign]) == (sign,)
    assert position_signs(layers.Plain()) == ()
