"""Tensors in, output and weights out: every convention gives what the module called by hand gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject, examine
from mha_core.errors import MhaError
from tests.doctor import calling_layers as layers
from tests.doctor.calling_layers import D, E, H, truth

B, SQ, SK = 2, 5, 7


def examined(layer: nn.Module, **given: object) -> Subject:
    return examine(layer.eval(), **given)  # type: ignore[arg-type]


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, atol=1e-5)


def test_sizes_are_read_from_attributes_and_layers() -> None:
    subject = examined(layers.Plain())
    assert (subject.embed_dim, subject.key_dim, subject.value_dim, subject.out_dim) == (E, E, E, E)
    assert (subject.num_heads, subject.num_kv_heads, subject.head_dim) == (H, H, D)
    assert subject.takes == "tokens"
    assert subject.name == "Plain (calling_layers.py)"
    assert [file.rsplit("/", 1)[1] for file in subject.files] == ["calling_layers.py"]
    assert [subject.is_library, subject.can_cross, subject.key_mask, subject.pair_mask] == [False] * 4


@pytest.mark.parametrize("kind", [layers.Plain, layers.KeepKeys, layers.Residual, layers.MustHaveMask])
def test_tokens_give_the_output_of_the_module_itself(kind: type[layers.Base]) -> None:
    layer = kind()
    subject = examined(layer)
    inputs = subject.inputs(B, SQ, seed=3)
    by_hand = layer(inputs.query, torch.ones(B, SQ)) if kind is layers.MustHaveMask else layer(inputs.query)
    by_hand = by_hand[0] if isinstance(by_hand, tuple) else by_hand
    assert same(subject.call(inputs).output, by_hand)


@pytest.mark.parametrize("kind", [layers.ValueKeyQuery, layers.Lengths, layers.PerHead])
def test_arguments_go_by_name_and_not_by_place(kind: type[layers.Base]) -> None:
    layer = kind()
    subject = examined(layer)
    inputs = subject.inputs(B, SQ, SK)
    assert subject.takes == "qkv"
    assert subject.can_cross
    assert inputs.key is not inputs.value
    assert same(subject.call(inputs).output, truth(layer, inputs.query, inputs.key, inputs.value))


@pytest.mark.parametrize(("kind", "takes"), [(layers.Star, "tokens"), (layers.StarThree, "qkv"), (layers.Named, "qkv")])
def test_tensors_by_place_or_by_keyword_only(kind: type[layers.Base], takes: str) -> None:
    layer = kind().eval()
    subject = examined(layer)
    inputs = subject.inputs(B, SQ)
    assert subject.takes == takes
    assert same(subject.call(inputs).output, truth(layer, *vars(inputs).values()))


def test_rotary_angles_are_made_for_those_who_ask() -> None:
    layer = layers.Rotated()
    subject = examined(layer)
    inputs = subject.inputs(B, SQ)
    angles = torch.outer(torch.arange(SQ).float(), 10000.0 ** (-torch.arange(0, D, 2).float() / D))
    assert same(subject.call(inputs).output, layer(inputs.query, 0, torch.polar(torch.ones_like(angles), angles), None))
    assert subject.position_signs == ("rotary",)
    assert subject.key_mask


def test_a_context_is_left_out_in_self_attention() -> None:
    layer = layers.Context()
    subject = examined(layer)
    assert subject.takes == "context"
    inputs = subject.inputs(B, SQ, SK)
    assert inputs.key is inputs.value
    assert same(subject.call(inputs).output, truth(layer, inputs.query, inputs.key, inputs.key))
    alone = subject.inputs(B, SQ)
    assert same(subject.call(alone).output, truth(layer, alone.query, alone.query, alone.query))


@pytest.mark.parametrize("kind", [layers.SequenceFirst, layers.SequenceFirstByNames])
def test_the_order_of_axes_is_read_from_words_and_names(kind: type[layers.Base]) -> None:
    layer = kind()
    subject = examined(layer)
    inputs = subject.inputs(B, SQ)
    assert not subject.batch_first
    assert subject.assumed["attends along"] == "axis 0 (tokens)"
    assert same(subject.call(inputs).output, truth(layer, inputs.query, inputs.query, inputs.query))


def test_attention_along_the_batch_without_a_word_is_not_taken_for_an_order() -> None:
    subject = examined(layers.AlongTheBatch())
    assert subject.batch_first
    assert subject.assumed["attends along"] == "axis 0 (samples)"
    assert not examined(layers.AlongTheBatch(), batch_first=False).batch_first


RETURNED = ["tuple", "reversed", "named", "dict", "dataclass", "nested", "flat", "heads first", "flat heads first"]


@pytest.mark.parametrize("form", RETURNED)
def test_output_and_weights_are_found_in_what_is_returned(form: str) -> None:
    layer = layers.Returns(form)
    subject = examined(layer)
    inputs = subject.inputs(3, 4)  # as many tokens as heads
    output, weights = layer.attend(inputs.query, inputs.query, inputs.query)
    answer = subject.call(inputs)
    assert same(answer.output, output)
    assert answer.weights is not None
    assert same(answer.weights, weights)


@pytest.mark.parametrize("batch", [1, H, 3])
def test_weights_in_one_axis_with_the_batch_are_told_apart(batch: int) -> None:
    layer = layers.Returns("flat heads first")
    subject = examined(layer)
    inputs = subject.inputs(batch, 6)
    answer = subject.call(inputs)
    assert answer.weights is not None
    assert same(answer.weights, layer.attend(inputs.query, inputs.query, inputs.query)[1])


def test_weights_are_asked_for_only_when_wanted() -> None:
    subject = examined(layers.NeedWeights())
    inputs = subject.inputs(B, SQ)
    assert subject.call(inputs).weights is None
    weights = subject.call(inputs, mode=Mode(weights=True)).weights
    assert weights is not None
    assert weights.shape == (B, H, SQ, SQ)


def test_every_dropout_knob_is_set_on_the_copy_and_only_there() -> None:
    layer = layers.Dropped()
    subject = examine(layer)
    inputs = subject.inputs(B, SQ)
    still = subject.call(inputs).output
    assert same(subject.call(inputs, mode=Mode(training=True, dropout=0.0)).output, still)
    assert not same(subject.call(inputs, mode=Mode(training=True)).output, still)
    gone = subject.call(inputs, mode=Mode(training=True, dropout=1.0)).output
    assert torch.equal(gone, torch.zeros_like(gone))
    copy = subject.fresh(training=True, dropout=0.25)
    assert (copy.attn_dropout, copy.drop.p, copy.config.attention_probs_dropout_prob) == (0.25, 0.25, 0.25)
    assert (layer.attn_dropout, layer.drop.p, layer.config.attention_probs_dropout_prob) == (0.3, 0.4, 0.5)


def test_calls_are_seeded_and_leave_the_outer_generator_alone() -> None:
    subject = examine(layers.Dropped())
    inputs = subject.inputs(B, SQ)
    before = torch.get_rng_state()
    first, second, third = (subject.call(inputs, mode=Mode(training=True), seed=seed).output for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_functions_of_split_heads_get_split_heads() -> None:
    layer = layers.Functional(temperature=8**0.5)
    subject = examined(layer, num_heads=3)
    assert (subject.takes, subject.num_heads, subject.head_dim, subject.embed_dim) == ("heads", 3, 8, 24)
    inputs = subject.inputs(B, SQ, SK)
    q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in (inputs.query, inputs.key, inputs.value))
    output, weights = layer(q, k, v)
    answer = subject.call(inputs)
    assert same(answer.output, output.transpose(1, 2).flatten(2))
    assert answer.weights is not None
    assert same(answer.weights, weights)


def test_heads_may_stand_behind_the_tokens() -> None:
    layer = layers.HeadsThird()
    subject = examined(layer, num_heads=3, embed_dim=12)
    inputs = subject.inputs(B, SQ, SK)
    q, k, v = (part.unflatten(-1, (3, 4)) for part in (inputs.query, inputs.key, inputs.value))
    assert same(subject.call(inputs).output, layer(q, k, v).flatten(2))
    assert "(B, S, H, D)" in subject.assumed["layout"]


def test_functions_of_three_axes_get_three_axes() -> None:
    subject = examined(layers.Bmm())
    inputs = subject.inputs(B, SQ, SK)
    assert subject.takes == "qkv"
    assert same(subject.call(inputs).output, layers.Bmm()(inputs.query, inputs.key, inputs.value))


def test_other_widths_for_keys_and_values() -> None:
    layer = nn.MultiheadAttention(24, 4, kdim=10, vdim=14, batch_first=True)
    subject = examined(layer)
    inputs = subject.inputs(B, SQ, SK)
    assert (subject.key_dim, subject.value_dim) == (10, 14)
    assert (inputs.key.shape, inputs.value.shape) == ((B, SK, 10), (B, SK, 14))
    assert same(subject.call(inputs).output, layer(*vars(inputs).values())[0])


def test_gradients_stay_as_the_caller_set_them() -> None:
    subject = examined(layers.Plain())
    copy = subject.fresh()
    subject.call(subject.inputs(B, SQ), module=copy).output.sum().backward()
    assert all(parameter.grad is not None for parameter in copy.parameters())
    assert all(parameter.grad is None for parameter in subject.module.parameters())
    with torch.no_grad():
        assert not subject.call(subject.inputs(B, SQ)).output.requires_grad


def test_a_module_that_always_raises_is_examined_and_tells_where() -> None:
    subject = examined(layers.AlwaysRaises())
    assert "view size" in subject.assumed["call failed"]
    with pytest.raises(ModuleFailure) as caught:
        subject.call(subject.inputs(B, SQ))
    assert caught.value.text.startswith("RuntimeError: view size")
    assert caught.value.place is not None
    assert caught.value.place.file == "calling_layers.py"
    assert caught.value.place.code == "return self.attend(x, x, x)[0].transpose(1, 2).view(x.shape[0], -1)"


def test_an_argument_nobody_knows_is_named_with_a_line_to_begin_from() -> None:
    with pytest.raises(MhaError, match=r'wavelength.*--call "module\(x=x, wavelength=\.\.\.\)"') as caught:
        examined(layers.Stranger())
    assert caught.value.field == "call"


def test_a_module_bound_to_one_length_is_probed_at_that_length() -> None:
    subject = examined(layers.Bound())
    assert subject.only_len == 9
    assert subject.inputs(B, SQ).query.shape == (B, 9, E)
    assert subject.call(subject.inputs(B, SQ)).output.shape == (B, 9, E)


def test_a_module_that_keeps_tokens_between_calls_is_probed_with_new_copies() -> None:
    subject = examined(layers.Growing())
    assert subject.key_mask
    assert subject.assumed["padding_mask"] == "mask (B, Sk), True = may attend"


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "in place"])
def test_steps_with_a_cache_continue_the_sequence(form: str) -> None:
    layer = layers.Cached(form)
    subject = examined(layer)
    assert subject.has_cache
    inputs = subject.inputs(B, 6)
    whole = truth(layer, *vars(inputs).values(), torch.ones(B, 6, 6, dtype=torch.bool).tril())
    copy, cache, outputs = subject.fresh(), None, []
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        tokens = inputs.query[:, start:stop]
        answer, cache = subject.call_cached(copy, Inputs(tokens, tokens, tokens), cache, start)
        outputs.append(answer.output)
    assert same(torch.cat(outputs, 1), whole)


def test_modules_without_a_cache_say_so() -> None:
    subject = examined(layers.Plain())
    assert not subject.has_cache
    with pytest.raises(ModuleFailure, match="no cache"):
        subject.call_cached(subject.fresh(), subject.inputs(B, 1), None, 0)


def test_lazy_layers_get_their_widths_once() -> None:
    layer = layers.Plain()
    layer.q = nn.LazyLinear(E)
    layer.embed_dim = E
    subject = examined(layer)
    inputs = subject.inputs(B, SQ)
    assert torch.equal(subject.call(inputs).output, subject.call(inputs).output)
    assert not isinstance(subject.fresh().q.weight, nn.UninitializedParameter)
