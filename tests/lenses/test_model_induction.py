"""The induction check on a small model, and passes of a model: kept, bounded, and never mixed up, also by threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from mha_core import AttentionConfig, Experiment, MaskSpec, trained_layer
from mha_core.experiment import run
from mha_core.lenses.model_effects import induction_check, right_token_probability
from mha_core.lenses.real_heads import induction_scores, repeated_tokens
from mha_core.sources.models.loading import load
from mha_core.sources.models.watching import SiteCall
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import edits
from tests.core.small_models import MAKERS, TEXT, eager, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save(MAKERS["llama"], tmp_path_factory.mktemp("models") / "llama", seed=5))


@torch.no_grad()
def test_the_right_next_token_by_hand(folder: str) -> None:
    model, source = load(folder), PretrainedSource(folder)
    ids = repeated_tokens(model, 3)
    half = len(ids) // 2
    module = eager(folder, model.module)
    module.model.layers[1].self_attn.o_proj.weight[:, :10] = 0  # head 0
    shares = module(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
    expected = sum(shares[place, ids[place + 1]].item() for place in range(half, 2 * half - 1)) / (half - 1)
    assert right_token_probability(model, source, ["1.0"], 3) == pytest.approx(expected, abs=1e-6)
    assert right_token_probability(model, source, [], 3) != pytest.approx(expected, abs=1e-6)


def test_the_check_mutes_the_strongest_and_as_many_others(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [[0.1, 0.9, float("nan"), 0.3, 0.2, 0.8], [0.0, 0.05, 0.7, 0.01, 0.02, 0.03]]
    muted: list[list[str]] = []

    def note(model: object, source: object, heads: list[str], seed: int) -> float:
        muted.append(list(heads))
        return float(len(muted))

    monkeypatch.setattr("mha_core.lenses.model_effects.right_token_probability", note)
    check = induction_check(PretrainedSource(folder), scores, count=3)
    assert muted[:2] == [[], ["0.1", "0.5", "1.2"]]
    assert (check.intact, check.strongest, check.others) == (1.0, 2.0, (3.0, 4.0, 5.0, 6.0, 7.0))
    assert check.heads == ("0.1", "0.5", "1.2")
    near = {"0.3", "0.4", "0.0"}  # the next strongest: neither one nor the other
    for others in muted[2:]:
        assert len(set(others)) == 3
        assert not set(others) & (near | set(check.heads) | {"0.2"})
    assert len({tuple(others) for others in muted[2:]}) > 1


def test_in_a_small_model_fewer_are_muted(folder: str) -> None:
    check = induction_check(PretrainedSource(folder), induction_scores(load(folder)), count=8)
    assert len(check.heads) == 4, "a third of 12"
    assert all(other != check.intact for other in check.others)


# --- kept passes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(folder: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the model ran."""
    model, count = load(folder), [0]
    own = model.run

    def counted(*args: object, **named: object) -> object:
        count[0] += 1
        return own(*args, **named)

    trained_layer._passes.clear()
    monkeypatch.setattr(model, "run", counted)
    return count


def variants(folder: str) -> list[Experiment]:
    source = PretrainedSource(folder, 1, TEXT)
    return [
        Experiment(source=source),
        Experiment(source=replace(source, muted=("0.1",))),
        Experiment(source=replace(source, muted=("0.2",))),
        Experiment(source=replace(source, own_mask=False, reach="all")),
        Experiment(source=replace(source, reach="all"), mask=MaskSpec(("local",), window=1)),
        Experiment(source=replace(source, reach="all"), attention=AttentionConfig(scale=0.01)),
        Experiment(source=replace(source, reach="all", replaced=("v",)), seed=4),
        Experiment(source=replace(source, reach="all", replaced=("v",)), seed=5),
        Experiment(source=replace(source, text="the cat\nsat")),
        Experiment(source=replace(source, text="the cat", memory_text="sat\nNone")),
    ]


def test_passes_are_kept_apart(folder: str, passes: list[int]) -> None:
    fresh = []
    for experiment in variants(folder):
        trained_layer._passes.clear()
        fresh.append(run(experiment).inputs.query)
    trained_layer._passes.clear()
    for _ in range(2):
        for experiment, expected in zip(variants(folder), fresh, strict=True):
            assert torch.equal(run(experiment).inputs.query, expected)
            assert len(trained_layer._passes) <= trained_layer.KEPT_PASSES
    shapes = [tuple(tensor.shape) for tensor in fresh]
    for first, tensor in enumerate(fresh):
        for other in range(first):
            assert shapes[first] != shapes[other] or not torch.allclose(tensor, fresh[other], atol=1e-4)


def test_going_from_layer_to_layer_runs_the_model_once(folder: str, passes: list[int]) -> None:
    for layer in (0, 1, 0, 1):
        run(Experiment(source=PretrainedSource(folder, layer, TEXT)))
    assert passes == [1]
    run(Experiment(source=PretrainedSource(folder, 0, TEXT, muted=("0.3", "1.2"))))
    assert passes == [1], "what a layer is given does not depend on edits of itself and of later ones"
    run(Experiment(source=PretrainedSource(folder, 1, TEXT, muted=("0.3",))))
    assert passes == [2]


def test_layers_that_are_large_are_not_kept(folder: str, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_layer, "KEPT_BYTES", 3 * 7 * 42 * 4)
    for layer in (1, 0, 1):
        run(Experiment(source=PretrainedSource(folder, layer, TEXT)))
    assert passes[0] > 1
    ((kept),) = trained_layer._passes.values()
    assert len(kept) <= 2
    assert all(call.weights is None and call.output is None for call in kept.values())


# --- threads --------------------------------------------------------------------------------------------------------


def test_threads_get_their_own_results(folder: str) -> None:
    """Several visitors run one model at once, each with other edits; hooks and edits of one must not reach another."""
    experiments = variants(folder)[:8]
    model = load(folder)

    def logits(experiment: Experiment) -> torch.Tensor:
        given = experiment.source.read()
        return model.run(given, replacements=edits(experiment, given), every_logit=True).logits

    expected = [logits(experiment) for experiment in experiments]
    wrong: list[str] = []
    start = threading.Barrier(len(experiments))

    def visit(number: int) -> None:
        start.wait()
        for _ in range(6):
            if not torch.equal(logits(experiments[number]), expected[number]):
                wrong.append(f"visitor {number}")
            seen: list[SiteCall] = []
            model.run(experiments[number].source.read(), seen.append)
            if [call.path for call in seen] != [site.path for site in model.sites]:
                wrong.append(f"visitor {number} saw other layers")

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(len(experiments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.module.modules())


def test_an_error_in_a_pass_leaves_nothing_behind(folder: str) -> None:
    model = load(folder)
    given = model.reader.read(TEXT, None)
    plain = model.run(given).logits

    def fail(call: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.run(given, fail)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.module.modules())
    assert torch.equal(model.run(given).logits, plain)
