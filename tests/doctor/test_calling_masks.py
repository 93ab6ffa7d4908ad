"""Masks: for every form and polarity the output is that of torch's own kernel under the same mask, True = keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mha_core.doctor.subject import ModuleFailure, Subject, examine
from tests.doctor import calling_layers as layers
from tests.doctor.calling_layers import E, H, truth

B, S = 3, 5
KEYS = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
TRIL = torch.ones(S, S, dtype=torch.bool).tril()
PER_SAMPLE = (torch.rand(B, S, S, generator=torch.Generator().manual_seed(0)) > 0.5) | torch.eye(S, dtype=torch.bool)


def right(subject: Subject, layer: nn.Module, keys: Tensor | None, pairs: Tensor | None) -> bool:
    inputs = subject.inputs(B, S)
    keep = torch.ones(B, S, S, dtype=torch.bool)
    keep = keep if keys is None else keep & keys[:, None, :]
    keep = keep if pairs is None else keep & pairs
    output = subject.call(inputs, keep_keys=keys, keep_pairs=pairs).output
    expected = truth(layer, *vars(inputs).values(), keep)  # type: ignore[arg-type]
    return torch.allclose(output, expected, atol=1e-4)


FORMS = [
    (layers.KeepKeys, "mask (B, Sk), True = may attend", "k"),
    (layers.KeepThree, "attention_mask (B, 1, Sk), True = may attend", "kps"),
    (layers.KeepFour, "mask (B, 1, 1, Sk), True = may attend", "kps"),
    (layers.HideKeys, "pad_mask (B, Sk), True = hidden", "k"),
    (layers.Additive, "attn_bias_mask (B, 1, 1, Sk), 0 = may attend, -inf = hidden", "kps"),
    (layers.Lengths, "valid_lens (B,), number of keys that may be attended", ""),
    (layers.MustHaveMask, "mask (B, Sk), True = may attend", "k"),
    (layers.Context, "mask (B, Sk), True = may attend", "k"),
]


@pytest.mark.parametrize(("kind", "words", "scopes"), FORMS, ids=[form[0].__name__ for form in FORMS])
def test_the_form_is_found_and_hides_what_it_should(kind: type[layers.Base], words: str, scopes: str) -> None:
    layer = kind().eval()
    subject = examine(layer)
    assert subject.assumed["padding_mask"] == words
    assert subject.key_mask
    assert not scopes or (subject.pair_mask, subject.sample_pair_mask) == ("p" in scopes, "s" in scopes)
    if scopes:
        assert right(subject, layer, KEYS, None)
    if "p" in scopes:
        assert right(subject, layer, None, TRIL)
        assert right(subject, layer, KEYS, TRIL)
        assert right(subject, layer, None, PER_SAMPLE)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(layers.Square, "attn_mask (Sq, Sk), True = may attend"), (layers.HiddenSquare, "mask (Sq, Sk), True = hidden")],
)
def test_masks_over_pairs_only(kind: type[layers.Base], words: str) -> None:
    layer = kind().eval()
    subject = examine(layer)
    assert subject.assumed["pair_mask"] == words
    assert right(subject, layer, None, TRIL)
    assert right(subject, layer, None, TRIL.expand(B, S, S))
    assert not subject.key_mask
    assert not subject.accepts(keep_keys=KEYS)
    with pytest.raises(ModuleFailure):
        subject.call(subject.inputs(B, S), keep_keys=KEYS)


def test_a_mask_per_head_is_batch_major() -> None:
    layer = layers.PerHead().eval()
    subject = examine(layer)
    assert subject.assumed["sample_pair_mask"] == "attn_mask (B*H, Sq, Sk), True = may attend"
    assert right(subject, layer, None, PER_SAMPLE)
    assert right(subject, layer, KEYS, TRIL)


def test_lengths_hide_the_end_and_nothing_else() -> None:
    layer = layers.Lengths().eval()
    subject = examine(layer)
    padded = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert right(subject, layer, padded, None)
    assert right(subject, layer, None, TRIL.expand(B, S, S))  # lengths per query
    assert subject.accepts(keep_keys=padded)
    assert not subject.accepts(keep_keys=KEYS)
    with pytest.raises(ModuleFailure, match="keys at the end"):
        subject.call(subject.inputs(B, S), keep_keys=KEYS)


def test_masks_of_a_cross_attention_follow_the_keys() -> None:
    layer = layers.ValueKeyQuery().eval()
    subject = examine(layer)
    inputs = subject.inputs(2, 4, 6)
    keys = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    expected = truth(layer, inputs.query, inputs.key, inputs.value, keys[:, None].expand(2, 4, 6))
    assert torch.allclose(subject.call(inputs, keep_keys=keys).output, expected, atol=1e-5)


def test_a_mask_that_does_nothing_is_still_given_as_documented() -> None:
    subject = examine(layers.MaskIgnored())
    assert subject.key_mask
    assert subject.assumed["padding_mask"].startswith("mask (B, Sk), True = may attend (guessed")


def test_a_mask_that_always_raises_is_still_offered() -> None:
    subject = examine(layers.MaskRaises())
    assert subject.key_mask
    assert subject.assumed["padding_mask"].startswith("key_padding_mask (B, Sk), True = hidden (guessed")
    with pytest.raises(ModuleFailure, match="shape"):
        subject.call(subject.inputs(B, S), keep_keys=KEYS)


def test_documentation_outweighs_a_swapped_polarity() -> None:
    subject = examine(layers.Swapped())
    assert subject.assumed["padding_mask"].startswith("mask (B, Sk), True = may attend")


def test_residuals_and_norms_do_not_hide_the_mask() -> None:
    subject = examine(layers.Residual().eval())
    assert subject.assumed["padding_mask"] == "mask (B, Sk), True = may attend"


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_multihead_attention(batch_first: bool) -> None:
    layer = nn.MultiheadAttention(E, H, batch_first=batch_first).eval()
    subject = examine(layer)
    assert subject.batch_first is batch_first
    inputs = subject.inputs(B, S)
    laid = inputs.query if batch_first else inputs.query.transpose(0, 1)
    for keys, pairs in ((KEYS, None), (None, TRIL), (KEYS, TRIL)):
        padding = None if keys is None else ~keys
        mask = None if pairs is None else ~pairs
        output, weights = layer(laid, laid, laid, padding, True, mask, average_attn_weights=False)
        output = output if batch_first else output.transpose(0, 1)
        one = subject.call(inputs, keep_keys=keys, keep_pairs=pairs)
        assert torch.allclose(one.output, output, atol=1e-5)
        assert one.weights is None or torch.allclose(one.weights, weights, atol=1e-5)
    by_head = (~PER_SAMPLE).repeat_interleave(H, 0)
    output = layer(laid, laid, laid, attn_mask=by_head)[0]
    output = output if batch_first else output.transpose(0, 1)
    assert torch.allclose(subject.call(inputs, keep_pairs=PER_SAMPLE).output, output, atol=1e-5)


def test_torch_encoder_layer() -> None:
    layer = nn.TransformerEncoderLayer(E, H, 32).eval()
    subject = examine(layer)
    inputs = subject.inputs(B, S)
    x = inputs.query.transpose(0, 1)
    expected = layer(x, ~TRIL, ~KEYS).transpose(0, 1)
    output = subject.call(inputs, keep_keys=KEYS, keep_pairs=TRIL).output
    assert (subject.takes, subject.batch_first, subject.num_heads) == ("tokens", False, H)
    assert torch.allclose(output[KEYS], expected[KEYS], atol=1e-5)


def test_torch_decoder_layer_gets_both_sets_of_masks_in_self_attention() -> None:
    layer = nn.TransformerDecoderLayer(E, H, 32, batch_first=True).eval()
    subject = examine(layer)
    cross = subject.inputs(2, 3, 5)
    keys = KEYS[:2]
    expected = layer(cross.query, cross.key, memory_key_padding_mask=~keys)
    assert torch.allclose(subject.call(cross, keep_keys=keys).output, expected, atol=1e-5)
    alone = subject.inputs(B, S)
    expected = layer(alone.query, alone.query, tgt_mask=~TRIL, memory_mask=~TRIL)
    assert torch.allclose(subject.call(alone, keep_pairs=TRIL).output, expected, atol=1e-5)
