"""The overview of a model's heads: maps, numbers and induction scores, against transformers' own maps and sums."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mha_core import Experiment, MhaError
from mha_core.experiment import run
from mha_core.lenses.head_stats import head_stats
from mha_core.lenses.real_heads import SMALL_SIDE, induction_scores, look_at_all, recompute, repeated_tokens
from mha_core.sources.models.loading import load
from mha_core.sources.models.watching import SiteCall
from mha_core.sources.trained import PretrainedSource
from tests.core.small_models import MAKERS, TEXT, eager, own_maps, save

FAMILIES = ("gpt2", "bert", "t5", "vit")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {family: str(save(MAKERS[family], root / family, seed=n)) for n, family in enumerate(FAMILIES)}


def reference(folder: str, text: str = TEXT) -> list[Tensor]:
    model = load(folder)
    return own_maps(eager(folder, model.module), model.reader.read(text, None))


@pytest.mark.parametrize("sample", [0, 1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_and_numbers_of_every_layer(family: str, sample: int, folders: dict[str, str]) -> None:
    views, maps = look_at_all(load(folders[family]), TEXT, sample=sample), reference(folders[family])
    assert [view.site.index for view in views] == list(range(len(maps)))
    real = 17 if family == "vit" else (7, 5, 1)[sample]
    for view, own in zip(views, maps, strict=True):
        torch.testing.assert_close(view.maps.masked_fill(view.hidden, 0.0), view.maps)
        torch.testing.assert_close(view.maps[:, :real], own[sample, :, :real], rtol=0, atol=1e-6)
        assert view.hidden[:, :real, real:].all()
        assert (view.difference.weights <= 1e-5, view.difference.output <= 1e-4) == (True, True)
        for head, numbers in enumerate(view.stats):
            rows = own[sample, head, :real]
            assert numbers.head == head
            assert numbers.first == pytest.approx(rows[:, 0].mean().item(), abs=1e-5)
            assert numbers.maximum == pytest.approx(rows.amax(-1).mean().item(), abs=1e-5)
            assert numbers.diagonal == pytest.approx(rows.diagonal().mean().item(), abs=1e-5)
            before = [rows[place, place - 1].item() for place in range(1, real)]
            assert numbers.previous == pytest.approx(sum(before) / real if before else 0, abs=1e-5) or (
                numbers.previous == pytest.approx(sum(before) / max(len(before), 1), abs=1e-5, nan_ok=True)
            )
            entropy = -sum(w * math.log(w) for row in rows.tolist() for w in row if w > 0) / real
            assert numbers.entropy_nats == pytest.approx(entropy, abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_numbers_are_those_of_page_1(family: str, folders: dict[str, str]) -> None:
    views = look_at_all(load(folders[family]), TEXT, sample=1)
    for layer, view in enumerate(views):
        once = head_stats(run(Experiment(source=PretrainedSource(folders[family], layer, TEXT))), 1)
        for seen, expected in zip(view.stats, once, strict=True):
            for name, value in vars(expected).items():
                assert getattr(seen, name) == pytest.approx(value, abs=1e-4, nan_ok=True), name


def test_long_maps_are_pooled_to_their_peaks(folders: dict[str, str]) -> None:
    text = " ".join(f"w{n}" for n in range(37))
    views, maps = look_at_all(load(folders["gpt2"]), text), reference(folders["gpt2"], text)
    for view, own in zip(views, maps, strict=True):
        assert view.maps.shape == (3, 19, 19)
        assert max(view.maps.shape[1:]) <= SMALL_SIDE < own.shape[-1]
        for row, column in ((0, 0), (7, 3), (18, 18), (18, 0)):
            block = own[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            torch.testing.assert_close(view.maps[:, row, column], block.amax((1, 2)), rtol=0, atol=1e-6)
        assert view.hidden[:, 3, 4:].all()


def test_a_text_without_tokens_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(MhaError) as caught:
        look_at_all(load(folders["bert"]), " ")
    assert caught.value.field == "text"


def test_a_wrong_layer_would_be_seen(folders: dict[str, str]) -> None:
    """The difference is between two computations: with another layer's weights it is large."""
    model = load(folders["gpt2"])
    calls: list[SiteCall] = []
    model.run(model.reader.read(TEXT, None), calls.append)
    wrong = recompute(model, model.sites[1], calls[0])
    assert wrong.weights > 1e-2
    assert wrong.output > 1e-2
    calls[0].output = None
    assert recompute(model, model.sites[0], calls[0]).problem == "its inputs were not seen"


# --- repeated tokens and induction ----------------------------------------------------------------------------------


def test_repeated_tokens(folders: dict[str, str]) -> None:
    model = load(folders["gpt2"])
    ids = repeated_tokens(model, seed=3, length=11)
    assert len(ids) == 22
    assert ids[:11] == ids[11:]
    assert ids == repeated_tokens(model, seed=3, length=11)
    assert ids != repeated_tokens(model, seed=4, length=11)
    drawn = {number for seed in range(40) for number in repeated_tokens(model, seed)}
    assert drawn <= set(range(8, 83)), "the lowest tenth of the vocabulary is special"
    assert len(drawn) > 60
    assert repeated_tokens(load(folders["vit"])) is None


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_induction_scores_by_hand(family: str, folders: dict[str, str]) -> None:
    model = load(folders[family])
    half = 11
    ids = repeated_tokens(model, 5)
    half = len(ids) // 2
    maps = own_maps(eager(folders[family], model.module), model.reader.from_ids([ids]))
    scores = induction_scores(model, 5)
    assert len(scores) == len(maps)
    for site, row, own in zip(model.sites, scores, maps, strict=True):
        if site.kind == "cross":
            assert all(math.isnan(score) for score in row)
            continue
        for head, score in enumerate(row):
            seen = [own[0, head, half + step, step + 1].item() for step in range(half - 1)]
            assert score == pytest.approx(sum(seen) / len(seen), abs=1e-6)


def test_induction_is_1_for_a_head_that_does_nothing_else(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps drawn by hand in place of the model's: one head looks where it should, one a token late, one everywhere."""
    model = load(folders["gpt2"])
    length = len(repeated_tokens(model))
    half = length // 2
    drawn = torch.zeros(1, 3, length, length)
    for place in range(length):
        drawn[0, 0, place, max(0, place - half + 1)] = 1
        drawn[0, 1, place, max(0, place - half)] = 1
        drawn[0, 2, place, : place + 1] = 1 / (place + 1)

    def stub(given: object, observe: object, *more: object, **named: object) -> None:
        for site in model.sites:
            observe(SiteCall(site.path, weights=drawn))

    monkeypatch.setattr(model, "run", stub)
    harmonic = sum(1 / (place + 1) for place in range(half, length - 1)) / (half - 1)
    for row in induction_scores(model):
        assert row == pytest.approx((1.0, 0.0, harmonic), abs=1e-6)


def test_a_model_of_pictures_has_no_induction(folders: dict[str, str]) -> None:
    scores = induction_scores(load(folders["vit"]))
    assert [len(row) for row in scores] == [3, 3]
    assert all(math.isnan(score) for row in scores for score in row)


def test_models_that_only_normalise_are_shown_without_a_comparison(tmp_path: Path) -> None:
    import transformers

    from tests.core.small_models import LLAMA

    folder = str(save(lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA)), tmp_path / "qwen3"))
    views, maps = look_at_all(load(folder), TEXT), reference(folder)
    for view, own in zip(views, maps, strict=True):
        torch.testing.assert_close(view.maps, own[0], rtol=0, atol=1e-6)
        assert (view.difference.weights, view.difference.output) == (None, None)
        assert "normalises" in view.difference.problem
