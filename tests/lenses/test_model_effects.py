"""Edits inside a trained model change what they say and nothing else, and their effect on the model is measured right.

The reference is a second copy of the model, changed by hand: a full 4-D mask, a parameter set to zero, a hook.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core import AttentionConfig, Experiment, InitSpec, MaskSpec, MhaError
from mha_core.experiment import run
from mha_core.lenses import model_effects
from mha_core.lenses.model_effects import induction_check, likeness, next_tokens, right_token_probability
from mha_core.lenses.real_heads import induction_scores
from mha_core.sources.models.loading import load
from mha_core.sources.models.text import ModelInput
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import edits, is_edited, source_of_layer, unedited
from tests.core.small_models import MAKERS, TEXT, eager, save

LOWEST = torch.finfo(torch.float32).min
FAMILIES = ("gpt2", "llama", "bert", "t5")
ASKING = {
    "gpt2": "transformer.h.{}.attn", "llama": "model.layers.{}.self_attn", "bert": "encoder.layer.{}.attention.self",
}  # fmt: skip
LAST = {
    "gpt2": "transformer.h.{}.attn.c_proj", "llama": "model.layers.{}.self_attn.o_proj",
    "bert": "encoder.layer.{}.attention.output.dense",
}  # fmt: skip
LENGTHS = (7, 5, 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {family: str(save(MAKERS[family], root / family, seed=n)) for n, family in enumerate(FAMILIES)}


@torch.no_grad()
def answer(module: Callable[..., Any], arguments: dict[str, Any], **more: Any) -> Tensor:
    given = module(**arguments | more)
    return given.logits if "logits" in given else given.last_hidden_state


def edited(experiment: Experiment) -> Tensor:
    """What the model says with the edits, at every place."""
    source = source_of_layer(experiment)
    model, given = source.loaded(), source.read()
    answered = model.run(given, replacements=edits(experiment, given), every_logit=True)
    return answered.logits if "logits" in answered else answered.last_hidden_state


def copy_of(folder: str) -> tuple[nn.Module, ModelInput]:
    model = load(folder)
    return eager(folder, model.module), model.reader.read(TEXT, None)


def real(states: Tensor) -> Tensor:
    """The places of real tokens: what stands at filler does not count."""
    return torch.cat([states[row, :length] for row, length in enumerate(LENGTHS)])


def expect(experiment: Experiment, expected: Tensor, plain: Tensor) -> None:
    assert (real(expected) - real(plain)).abs().max() > 1e-2, "the edit does something"
    torch.testing.assert_close(real(edited(experiment)), real(expected), rtol=0, atol=2e-4)


def mask_of(given: ModelInput, allowed: Tensor) -> Tensor:
    """What transformers adds to the scores, (B, 1, S, S)."""
    return torch.zeros(allowed.shape).masked_fill(~allowed, LOWEST)


# --- each edit against the same change by hand ----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reach", ["layer", "all"])
def test_without_an_edit_the_model_is_left_alone(family: str, reach: str, folders: dict[str, str]) -> None:
    experiment = Experiment(source=PretrainedSource(folders[family], 1, TEXT, reach=reach))
    module, given = copy_of(folders[family])
    assert not is_edited(experiment)
    assert edits(experiment, given) == {}
    assert torch.equal(edited(experiment), answer(module, dict(given.arguments)))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_an_edit(family: str, folders: dict[str, str]) -> None:
    plain = Experiment(source=PretrainedSource(folders[family], 0, TEXT))
    source = source_of_layer(plain)
    changed = [
        replace(plain, source=replace(source, own_mask=False)),
        replace(plain, source=replace(source, muted=("1.0",))),
        replace(plain, source=replace(source, replaced=("v",))),
        replace(plain, mask=MaskSpec(("causal",))),
        replace(plain, attention=replace(plain.attention, scale=0.77)),
    ]
    assert [is_edited(experiment) for experiment in changed] == [True] * 5
    assert {unedited(experiment) for experiment in changed} == {plain}
    engines = AttentionConfig(kernel="chunked", projection="fused", head_split="einops")
    assert not is_edited(Experiment(source=source, attention=engines, seed=3)), "another engine, the same layer"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("reach", ["layer", "all"])
def test_a_decoder_that_sees_the_future(family: str, reach: str, folders: dict[str, str]) -> None:
    module, given = copy_of(folders[family])
    plain = answer(module, dict(given.arguments))
    experiment = Experiment(source=PretrainedSource(folders[family], 1, TEXT, own_mask=False, reach=reach))
    nothing = torch.zeros(3, 1, 7, 7)
    if reach == "all":
        expected = answer(module, dict(given.arguments), attention_mask=nothing)
    else:
        asking = module.get_submodule(ASKING[family].format(1))
        asking.register_forward_pre_hook(lambda m, a, k: (a, k | {"attention_mask": nothing}), with_kwargs=True)
        expected = answer(module, dict(given.arguments))
    expect(experiment, expected, plain)
    assert (run(experiment).weights > 0).all()


def test_an_encoder_that_does_not_see_the_future(folders: dict[str, str]) -> None:
    module, given = copy_of(folders["bert"])
    plain = answer(module, dict(given.arguments))
    source = PretrainedSource(folders["bert"], 0, TEXT, reach="all")
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    keys = given.arguments["attention_mask"].bool()[:, None, None]
    expected = answer(module, dict(given.arguments), attention_mask=mask_of(given, causal & keys))
    expect(Experiment(source=source, mask=MaskSpec(("causal",))), expected, plain)
    dropped = answer(module, dict(given.arguments), attention_mask=mask_of(given, causal.expand(3, 1, 7, 7)))
    without_own = Experiment(source=replace(source, own_mask=False), mask=MaskSpec(("causal",)))
    torch.testing.assert_close(real(edited(without_own)), real(dropped), rtol=0, atol=2e-4)
    padding = Experiment(source=replace(source, own_mask=False), mask=MaskSpec(("padding",)))
    torch.testing.assert_close(real(edited(padding)), real(plain), rtol=0, atol=2e-4)


@pytest.mark.parametrize("reach", ["layer", "all"])
@pytest.mark.parametrize(("family", "layer"), [("llama", 1), ("bert", 0), ("t5", 0), ("t5", 3)])
def test_another_scale(family: str, layer: int, reach: str, folders: dict[str, str]) -> None:
    module, given = copy_of(folders[family])
    plain = answer(module, dict(given.arguments))
    model = load(folders[family])
    chosen = model.sites[layer]
    alike = {s.index for s in model.sites if (s.stack, s.kind) == (chosen.stack, chosen.kind)}
    assert len(alike) == 2
    for index in alike if reach == "all" else {layer}:
        module.get_submodule(model.sites[index].path).scaling = 0.07
    source = PretrainedSource(folders[family], layer, TEXT, reach=reach)
    experiment = Experiment(source=source, attention=AttentionConfig(scale=0.07))
    expect(experiment, answer(module, dict(given.arguments)), plain)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("heads", [(0,), (1, 2), "all"], ids=str)
def test_muted_heads(family: str, heads: Any, folders: dict[str, str]) -> None:
    """A muted head is a zero in its channels of what the output projection is given, whatever layer is looked at."""
    module, given = copy_of(folders[family])
    plain = answer(module, dict(given.arguments))
    config = load(folders[family]).sites[1].config
    muted = range(config.num_heads) if heads == "all" else heads
    silent = torch.tensor([head in muted for head in range(config.num_heads)]).repeat_interleave(config.head_dim)
    last = module.get_submodule(LAST[family].format(1))
    last.register_forward_pre_hook(lambda m, args: (args[0].masked_fill(silent, 0.0),))
    expected = answer(module, dict(given.arguments))
    for layer in (0, 1):
        source = PretrainedSource(folders[family], layer, TEXT, muted=tuple(f"1.{head}" for head in muted))
        expect(Experiment(source=source), expected, plain)


MATRICES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}


@pytest.mark.parametrize("replaced", [("q",), ("v",), ("k", "out")], ids=str)
@pytest.mark.parametrize("reach", ["layer", "all"])
def test_matrices_replaced_by_zeros(replaced: tuple[str, ...], reach: str, folders: dict[str, str]) -> None:
    module, given = copy_of(folders["llama"])
    plain = answer(module, dict(given.arguments))
    for layer in (0, 1) if reach == "all" else (0,):
        for role in replaced:
            module.get_submodule(ASKING["llama"].format(layer)).get_submodule(MATRICES[role]).weight.data.zero_()
    source = PretrainedSource(folders["llama"], 0, TEXT, replaced=replaced, reach=reach)
    expect(Experiment(source=source, init=InitSpec("zeros")), answer(module, dict(given.arguments)), plain)


def test_a_replaced_matrix_loses_its_bias_as_well_and_others_keep_theirs(folders: dict[str, str]) -> None:
    module, given = copy_of(folders["gpt2"])
    plain = answer(module, dict(given.arguments))
    fused = module.transformer.h[1].attn.c_attn
    fused.weight.data[:, 42:63] = 0  # (in, out): q, k, v side by side
    fused.bias.data[42:63] = 0
    source = PretrainedSource(folders["gpt2"], 1, TEXT, replaced=("v",))
    expect(Experiment(source=source, init=InitSpec("zeros")), answer(module, dict(given.arguments)), plain)


def test_a_fresh_matrix_follows_the_seed(folders: dict[str, str]) -> None:
    source = PretrainedSource(folders["gpt2"], 1, TEXT, replaced=("v",))
    first, again, other = (edited(Experiment(source=source, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-2


def test_edits_before_a_layer_change_what_it_is_given_and_those_after_do_not(folders: dict[str, str]) -> None:
    module, given = copy_of(folders["llama"])
    module.model.layers[0].self_attn.o_proj.weight.data[:, 10:20] = 0  # head 1
    seen: list[Tensor] = []
    module.model.layers[1].self_attn.q_proj.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    answer(module, dict(given.arguments))
    source = PretrainedSource(folders["llama"], 1, TEXT)
    plain = run(Experiment(source=source))
    before = run(Experiment(source=replace(source, muted=("0.1",))))
    torch.testing.assert_close(real(before.inputs.query), real(seen[0]), rtol=0, atol=1e-5)
    assert (real(before.inputs.query) - real(plain.inputs.query)).abs().max() > 1e-2
    own = run(Experiment(source=replace(source, muted=("1.1",))))
    assert torch.equal(own.inputs.query, plain.inputs.query)
    assert torch.equal(own.weights, plain.weights)
    assert not own.context[:, 1].any()
    assert (own.output - plain.output).abs().max() > 1e-2


# --- what the model says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_next_tokens_by_hand(family: str, folders: dict[str, str]) -> None:
    """Softmax of the last real token's logits, for sequences of different lengths, before and after."""
    module, given = copy_of(folders[family])
    label = load(folders[family]).reader.label
    source = PretrainedSource(folders[family], 1, TEXT, muted=("0.0", "1.2"))
    answers = next_tokens(Experiment(source=source), count=4)
    old, new = answer(module, dict(given.arguments)), edited(Experiment(source=source))
    assert len(answers) == 3
    for row, (found, length) in enumerate(zip(answers, LENGTHS, strict=True)):
        p, q = ([math.exp(x) for x in logits[row, length - 1].double().tolist()] for logits in (old, new))
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        assert found.divergence_nats == pytest.approx(
            sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), abs=1e-4
        )
        assert found.divergence_nats > 1e-3
        likely = {n for r in (p, q) for n in sorted(range(len(r)), key=r.__getitem__)[-4:]}
        expected = sorted(likely, key=lambda number: -max(p[number], q[number]))[:4]
        assert [guess.token for guess in found.guesses] == [label(number) for number in expected]
        assert [guess.before for guess in found.guesses] == pytest.approx([p[n] for n in expected], abs=1e-5)
        assert [guess.after for guess in found.guesses] == pytest.approx([q[n] for n in expected], abs=1e-5)
    read = given.second if family == "t5" else given.tokens
    assert [found.tokens for found in answers] == list(read.sequences)


def test_sequences_of_one_length_need_the_last_logits_only(folders: dict[str, str]) -> None:
    source = PretrainedSource(folders["llama"], 1, "the cat sat\nwe saw birds", muted=("0.3",))
    even = next_tokens(Experiment(source=source))
    alone = next_tokens(Experiment(source=replace(source, text="we saw birds")))
    for guess, expected in zip(even[1].guesses, alone[0].guesses, strict=True):
        assert guess.token == expected.token
        assert (guess.before, guess.after) == pytest.approx((expected.before, expected.after), abs=1e-5)


def test_too_many_logits_are_refused(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_effects, "MAX_LOGITS", 3 * 7 * 83 - 1)
    with pytest.raises(MhaError, match="too many logits") as caught:
        next_tokens(Experiment(source=PretrainedSource(folders["gpt2"], 0, TEXT)))
    assert caught.value.field == "text"
    monkeypatch.setattr(model_effects, "MAX_LOGITS", 3 * 7 * 83)
    assert len(next_tokens(Experiment(source=PretrainedSource(folders["gpt2"], 0, TEXT)))) == 3


def test_likeness_by_hand(folders: dict[str, str]) -> None:
    module, given = copy_of(folders["bert"])
    experiment = Experiment(source=PretrainedSource(folders["bert"], 0, TEXT, muted=("0.0", "1.1")))
    found = likeness(experiment)
    sides = []
    for states in (answer(module, dict(given.arguments)).double(), edited(experiment).double()):
        means = [states[row, :length].mean(0) for row, length in enumerate(LENGTHS)]
        sides.append([mean / mean.norm() for mean in means])
    for rows, vectors in ((found.before, sides[0]), (found.after, sides[1])):
        cosines = [[(a @ b).item() for a in vectors] for b in vectors]
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(cosines), rtol=0, atol=1e-5)
    moved = [(a @ b).item() for a, b in zip(*sides, strict=True)]
    assert found.moved == pytest.approx(moved, abs=1e-5)
    assert min(moved) < 0.999


def test_models_that_cannot_say_what_is_asked(folders: dict[str, str]) -> None:
    encoder, decoder = (PretrainedSource(folders[family], 0, TEXT) for family in ("bert", "gpt2"))
    asked: list[Callable[[], object]] = [
        lambda: next_tokens(Experiment(source=encoder)),
        lambda: right_token_probability(encoder.loaded(), encoder, ()),
        lambda: induction_check(encoder, induction_scores(encoder.loaded())),
        lambda: likeness(Experiment(source=decoder)),
    ]
    for ask in asked:
        with pytest.raises(MhaError) as caught:
            ask()
        assert caught.value.field == "model"
