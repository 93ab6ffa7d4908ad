"""The two real models: every head of both, recomputed by our layer, and what edits inside them do.

The reference is transformers with its own attention. All tests that need SmolLM2 are here, since loading it takes long.
"""

from __future__ import annotations

import hashlib
import statistics

import pytest
import torch
import transformers
from torch import Tensor

from mha_core import Experiment, MhaError
from mha_core.experiment import run
from mha_core.lenses.model_effects import induction_check, likeness, next_tokens, right_token_probability
from mha_core.lenses.real_heads import induction_scores, look_at_all, recompute, repeated_tokens
from mha_core.sources.models.loading import load
from mha_core.sources.models.real_model import RealModel
from mha_core.sources.models.text import ModelInput
from mha_core.sources.models.watching import SiteCall
from mha_core.sources.models.weight_packages import PACKAGES, find_weights
from mha_core.sources.trained import PretrainedSource
from tests.core.small_models import own_maps

SINGLE = "The cat sat on the mat because it was tired."
PADDED = "A man is eating.\nThe weather was so bad that nobody wanted to leave the house.\nWhy?"
TEXTS = {"single": SINGLE, "padded": PADDED}


def real(name: str) -> RealModel:
    try:
        find_weights(name)
    except MhaError:
        pytest.skip("the model's package is not installed")
    return load(name)


@pytest.fixture(scope="module")
def minilm() -> RealModel:
    return real("minilm")


@pytest.fixture(scope="module")
def smollm2() -> RealModel:
    pytest.importorskip("gguf")
    return real("smollm2")


@pytest.fixture(scope="module")
def eager_smollm2(smollm2: RealModel) -> dict[str, list[Tensor]]:
    """The maps of each text with transformers' own attention: the same weights, since loading them twice is slow."""
    smollm2.module.set_attn_implementation("eager")
    maps = {name: own_maps(smollm2.module, smollm2.reader.read(text, None)) for name, text in TEXTS.items()}
    maps["repeated"] = own_maps(smollm2.module, smollm2.reader.from_ids([repeated_tokens(smollm2)]))
    smollm2.module.set_attn_implementation("mha_lab")
    return maps


def check_every_head(model: RealModel, given: ModelInput, reference: list[Tensor]) -> None:
    """Watched maps are transformers' own, and our layer gives the same maps and outputs."""
    calls: list[SiteCall] = []
    model.run(given, calls.append)
    assert [call.path for call in calls] == [site.path for site in model.sites]
    for site, call, maps in zip(model.sites, calls, reference, strict=True):
        assert (
            call.weights.shape == maps.shape == (given.tokens.batch, site.config.num_heads, *[given.tokens.length] * 2)
        )
        torch.testing.assert_close(call.weights, maps, rtol=0, atol=1e-6)
        difference = recompute(model, site, call)
        assert difference.weights <= 1e-5, site.label
        assert difference.output <= 1e-4, site.label


# --- all-MiniLM-L6-v2 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_every_head_of_minilm(text: str, minilm: RealModel) -> None:
    folder = find_weights("minilm").parent
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = minilm.reader.read(TEXTS[text], None)
    expected = tokenizer(TEXTS[text].splitlines(), padding=True, return_tensors="pt")
    assert torch.equal(given.arguments["input_ids"], expected["input_ids"])
    assert torch.equal(given.arguments["attention_mask"], expected["attention_mask"])
    assert given.tokens.sequences[0][0] == "[CLS]"
    reference = own_maps(theirs, given)
    assert [maps.shape[1] for maps in reference] == [12] * 6
    check_every_head(minilm, given, reference)
    layer = run(Experiment(source=PretrainedSource("minilm", 3, TEXTS[text])))
    torch.testing.assert_close(layer.weights, reference[3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_the_weights_are_the_published_ones(name: str) -> None:
    try:
        path = find_weights(name)
    except MhaError:
        pytest.skip("the model's package is not installed")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == PACKAGES[name].sha256


def test_sentences_that_mean_the_same_are_alike(minilm: RealModel) -> None:
    text = "A man is eating food.\nSomeone is having a meal.\nThe stock market fell sharply today."
    plain = likeness(Experiment(source=PretrainedSource("minilm", 2, text)))
    assert plain.before == plain.after
    assert plain.moved == pytest.approx((1.0, 1.0, 1.0), abs=1e-5)
    assert plain.before[0][1] > 0.5 > 0.2 > plain.before[0][2]
    everyone = tuple(f"{layer}.{head}" for layer in range(6) for head in range(12))
    silent = likeness(Experiment(source=PretrainedSource("minilm", 2, text, muted=everyone)))
    assert silent.before == plain.before
    assert max(silent.moved) < 0.9


# --- SmolLM2 --------------------------------------------------------------------------------------------------------


def test_the_layers_of_smollm2(smollm2: RealModel) -> None:
    assert len(smollm2.sites) == 30
    shapes = {(s.config.num_heads, s.config.kv_heads, s.config.head_dim, s.config.embed_dim) for s in smollm2.sites}
    assert shapes == {(9, 3, 64, 576)}
    assert (smollm2.can_predict, smollm2.title) == (True, "SmolLM2-135M-Instruct")


@pytest.mark.parametrize("text", TEXTS)
def test_every_head_of_smollm2(text: str, smollm2: RealModel, eager_smollm2: dict[str, list[Tensor]]) -> None:
    assert [maps.shape[1] for maps in eager_smollm2[text]] == [9] * 30
    check_every_head(smollm2, smollm2.reader.read(TEXTS[text], None), eager_smollm2[text])
    layer = run(Experiment(source=PretrainedSource("smollm2", 17, TEXTS[text])))
    torch.testing.assert_close(layer.weights, eager_smollm2[text][17], rtol=0, atol=1e-5)


def test_smollm2_knows_some_geography(smollm2: RealModel) -> None:
    text = "The capital of France is\nThe capital of Italy is the city of"
    plain = next_tokens(Experiment(source=PretrainedSource("smollm2", 0, text)))
    assert [answer.guesses[0].token for answer in plain] == ["␣Paris", "␣Rome"]
    assert [answer.divergence_nats for answer in plain] == [0, 0]
    everyone = tuple(f"{layer}.{head}" for layer in range(30) for head in range(9))
    deaf = next_tokens(Experiment(source=PretrainedSource("smollm2", 0, text, muted=everyone)))
    for answer, old in zip(deaf, plain, strict=True):
        paris = next(guess for guess in answer.guesses if guess.token == old.guesses[0].token)
        assert paris.before == pytest.approx(old.guesses[0].before, rel=1e-4)
        assert paris.after < paris.before / 5
        assert answer.divergence_nats > 1


def test_induction_scores_are_read_off_the_maps(smollm2: RealModel, eager_smollm2: dict[str, list[Tensor]]) -> None:
    ids = repeated_tokens(smollm2)
    half = len(ids) // 2
    assert ids[:half] == ids[half:]
    scores = induction_scores(smollm2)
    assert (len(scores), {len(row) for row in scores}) == (30, {9})
    for layer, maps in enumerate(eager_smollm2["repeated"]):
        for head in range(9):
            seen = [maps[0, head, place, place - half + 1].item() for place in range(half, 2 * half - 1)]
            assert scores[layer][head] == pytest.approx(sum(seen) / len(seen), abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_strongest_induction_heads_do_the_work_of_repeating(seed: int, smollm2: RealModel) -> None:
    source, scores = PretrainedSource("smollm2"), induction_scores(smollm2)
    check = induction_check(source, scores, count=8, seed=seed)
    assert len(check.heads) == len(set(check.heads)) == 8
    weakest = min(scores[int(layer)][int(head)] for layer, head in (name.split(".") for name in check.heads))
    assert sorted(score for row in scores for score in row)[-8] == weakest > 0.2
    assert len(check.others) == 5
    assert all(check.strongest < other for other in check.others)
    assert check.strongest < 0.5 * check.intact
    assert statistics.median(check.others) > 0.5 * check.intact, "most heads do something else"
    assert right_token_probability(smollm2, source, check.heads, seed) == check.strongest


def test_an_overview_of_smollm2(smollm2: RealModel) -> None:
    views = look_at_all(smollm2, SINGLE)
    assert [view.site.index for view in views] == list(range(30))
    assert {len(view.stats) for view in views} == {9}
    assert all(view.difference.weights <= 1e-5 and view.difference.output <= 1e-4 for view in views)
    sinks = [numbers.first for view in views[5:] for numbers in view.stats]
    assert sum(first > 0.5 for first in sinks) > len(sinks) / 4, "most decoders rest on their first token"
