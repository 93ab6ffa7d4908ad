"""The training race: tasks against plain Python, one step against autograd written out, what each racer must show."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from mha_core import MhaError
from mha_core.init_schemes import INIT_SCHEMES, generator_for
from mha_core.lenses.training import held_out, probe_labels, race, rows, total, tracks
from mha_core.lenses.training_model import DEFAULT_RACERS, RACERS, RaceSetting, TinyModel, check_race
from mha_core.lenses.training_reasons import explain
from mha_core.lenses.training_tasks import TASKS

TINY = RaceSetting(length=5, vocab=7, embed_dim=6, num_heads=3, steps=4, batch=11, seed=3)
ANSWERS = {"copy": list, "reverse": lambda words: words[::-1], "sort": sorted}


def only(setting: RaceSetting, racer: str):
    (track,) = tracks(race(setting, [racer]))
    return track


def batch_of(task: str, length: int, vocab: int):
    batch = TASKS[task].draw(torch.Generator().manual_seed(2), 53, length, vocab)
    return [tensor.tolist() for tensor in (batch.inputs, batch.targets, batch.counts)]


@pytest.mark.parametrize("task", ANSWERS)
def test_a_question_is_followed_by_its_answer(task):
    for inputs, targets, counts in zip(*batch_of(task, 7, 5), strict=True):
        question, separator, said = inputs[:7], inputs[7], inputs[8:]
        answer = ANSWERS[task](question)
        assert (separator, said) == (5, answer[:-1])
        assert (targets[7:], counts) == (answer, [False] * 7 + [True] * 7)
        assert set(question) <= set(range(5))


def test_induction_asks_what_followed_last_time():
    periods = Counter()
    for inputs, targets, counts in zip(*batch_of("induction", 7, 11), strict=True):
        for place, token in enumerate(inputs):
            earlier = [before for before in range(place) if inputs[before] == token]
            assert counts[place] == bool(earlier)
            if earlier:
                assert targets[place] == inputs[earlier[-1] + 1]
            assert place == 13 or targets[place] == inputs[place + 1]
        periods[counts.index(True)] += 1
    assert set(periods) == {4, 5, 6, 7}


def position_wise_best(task: str, length: int, vocab: int) -> float:
    """Say the commonest target of each (position, token), over every question that there is."""
    seen: dict[tuple[int, int], Counter] = {}
    for question in itertools.product(range(vocab), repeat=length):
        answer = ANSWERS[task](list(question))
        for place, (before, target) in enumerate(zip([vocab, *answer], answer, strict=False)):
            seen.setdefault((place, before), Counter())[target] += 1
    return sum(max(counter.values()) for counter in seen.values()) / (length * vocab**length)


@pytest.mark.parametrize(("length", "vocab"), [(5, 3), (3, 7), (4, 5)])
@pytest.mark.parametrize("task", ANSWERS)
def test_chance_is_the_best_without_looking_elsewhere(task, length, vocab):
    assert TASKS[task].chance(length, vocab) == pytest.approx(position_wise_best(task, length, vocab), rel=1e-12)


def test_chance_of_induction_is_any_other_token():
    assert TASKS["induction"].chance(7, 11) == pytest.approx(1 / 10)


def test_the_same_setting_gives_the_same_numbers_and_leaves_global_randomness_alone():
    before = torch.get_rng_state()
    with torch.no_grad():  # as a caller may have it
        first, second = (list(race(TINY, ["xavier_uniform", "normal"])) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(first) == total(TINY, ["a", "b"]) == 2 * 5
    for one, other in zip(first, second, strict=True):
        assert (one.racer, one.step, one.points, one.accuracy) == (
            other.racer,
            other.step,
            other.points,
            other.accuracy,
        )
        assert np.array_equal(one.maps, other.maps)
    assert first[-1].points != list(race(replace(TINY, seed=4), ["normal"]))[-1].points


def test_racers_take_turns_and_see_the_same_sequences_and_other_parameters():
    together = list(race(TINY, ["orthogonal", "zeros"]))
    assert [result.racer for result in together[:4]] == ["orthogonal", "zeros"] * 2
    for track in tracks(together):
        assert track.points == only(TINY, track.racer).points, "another racer beside it changes nothing"
    models = [TinyModel(TINY, RACERS[name].spec) for name in ("orthogonal", "zeros")]
    for one, other in zip(*(model.others() for model in models), strict=True):
        assert torch.equal(one, other)
    assert len(models[0].others()) == 3 + 4  # tokens, positions, read-out and four biases


def test_the_first_step_is_that_of_autograd_written_out():
    """One layer in plain torch, float64, from the same parameters and the same first batch."""
    track = only(replace(TINY, bias=False), "kaiming_normal")
    model = TinyModel(replace(TINY, bias=False), RACERS["kaiming_normal"].spec).double()
    (wq, wk, wv, wo) = leaves = [matrix.detach().requires_grad_() for matrix in model.matrices()[0]]
    inputs, targets = first_batch(TINY)
    x = model.tokens.detach()[inputs] + model.positions.detach()
    q, k, v = ((x @ w.T).view(11, 10, 3, 2).transpose(1, 2) for w in (wq, wk, wv))
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    logits = (x + context.transpose(1, 2).reshape(11, 10, 6) @ wo.T) @ model.read_out.detach().T
    loss = torch.nn.functional.cross_entropy(logits[:, 5:].reshape(-1, 7), targets[:, 5:].reshape(-1))
    loss.backward()
    first = track.points[0]
    assert first.loss == pytest.approx(loss.item(), rel=1e-5)
    assert first.gradients[0] == pytest.approx([leaf.grad.norm().item() for leaf in leaves], rel=1e-4)
    right = (logits[:, 5:].argmax(-1) == targets[:, 5:]).double().mean().item()
    assert first.accuracy == pytest.approx(right, abs=1e-6)


def first_batch(setting: RaceSetting):
    """The first training batch, as the documented stream gives it."""
    batch = setting.rules.draw(
        generator_for(setting.seed, "race", "data"), setting.batch, setting.length, setting.vocab
    )
    return batch.inputs, batch.targets


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_all_zeros_gets_no_gradient_at_any_step(layers, layer_norm, bias):
    setting = replace(TINY, layers=layers, layer_norm=layer_norm, bias=bias, steps=7)
    track = only(setting, "zeros")
    assert len(track.points) == 7
    for point in track.points:
        assert point.gradients == ((0.0,) * 4,) * layers
        assert point.other_gradient > 0
    assert track.stops[-1].weight_norms == ((0.0,) * 4,) * layers
    (verdict,) = explain(setting, track.stops)
    assert verdict.kind == "all_zero"
    assert "gradient of exactly 0 at each of 7 steps" in verdict.sentence
    assert "out is 0, so nothing passes back" in verdict.sentence


def test_zeros_in_q_and_k_alone_learn_with_uniform_maps():
    setting = replace(TINY, steps=7)
    track = only(setting, "zeros_in_qk")
    assert all(q == k == 0 and v > 0 and out > 0 for point in track.points for q, k, v, out in point.gradients)
    even = np.tril(np.ones((10, 10))) / np.arange(1, 11)[:, None]
    assert np.allclose(track.stops[-1].maps, even, atol=1e-6)
    assert explain(setting, track.stops)[0].kind == "uniform"


def test_zeros_in_out_alone_wait_for_one_step():
    track = only(TINY, "zeros_in_out")
    assert track.points[0].gradients[0][:3] == (0.0, 0.0, 0.0)
    assert track.points[0].gradients[0][3] > 0
    assert min(track.points[1].gradients[0]) > 0
    sentence = explain(TINY, track.stops)[0].sentence
    assert sentence.startswith("At step 1 q, k and v had a gradient of exactly 0 (out was 0")
    assert "from step 2 on they had one" in sentence


def test_heads_that_start_equal_stay_equal():
    setting = replace(TINY, steps=60, learning_rate=0.02)
    for racer, kind in (("constant", "equal_heads"), ("normal", "unfinished")):
        track = only(setting, racer)
        apart = np.ptp(np.stack([stop.maps for stop in track.stops]), axis=2).max()
        moved = np.abs(track.stops[-1].maps - track.stops[0].maps).max()
        assert moved > 0.05
        assert (apart < 1e-5) == (racer == "constant")
        assert (track.stops[-1].value_ranks == (1,)) == (racer == "constant")
        assert explain(setting, track.stops)[0].kind == kind


def test_a_race_that_blows_up_is_said_to():
    start, block = only(TINY, "normal").stops[:2]
    broken = replace(block, points=(replace(block.points[0], step=2, loss=float("nan")),))
    (verdict,) = explain(TINY, [start, block, broken])
    assert verdict.kind == "diverged"
    assert "no finite number from step 2 on" in verdict.sentence


@pytest.mark.parametrize("task", TASKS)
def test_maps_are_causal_and_every_row_sums_to_one(task):
    setting = replace(TINY, task=task, layers=2)
    for stop in only(setting, "xavier_normal").stops:
        assert stop.maps.shape == (2, 3, 10, 10)
        assert stop.maps.dtype == np.float32
        assert np.allclose(stop.maps.sum(-1), 1, atol=1e-6)
        assert not np.triu(stop.maps, 1).any()
    assert len(probe_labels(setting)) == 10


def test_recorded_steps_are_bounded_and_end_with_the_last():
    for steps in (1, 7, 25, 26, 59, 200, 2999):
        recorded = replace(TINY, steps=steps).recorded_steps
        assert (recorded[0], recorded[-1]) == (0, steps)
        assert len(recorded) <= 26
        assert sorted(set(recorded)) == list(recorded)


def test_rows_tell_every_step():
    results = list(race(replace(TINY, layers=2, steps=61), ["zeros", "identity"]))
    table = rows(results)
    assert [(row["scheme"], row["step"]) for row in table] == [
        (s, n) for s in ("zeros", "identity") for n in range(1, 62)
    ]
    assert [row["step"] for row in table if row["held_out_accuracy"] is not None][:3] == [3, 6, 9]
    assert table[0]["gradient_norm_v_layer_1"] == 0.0


@pytest.fixture(scope="module")
def default_race():
    return list(race(RaceSetting(), DEFAULT_RACERS))


def test_the_default_race_ends_as_promised(default_race):
    xavier, constant, zeros = tracks(default_race)
    assert [track.racer for track in (xavier, constant, zeros)] == list(DEFAULT_RACERS)
    assert xavier.accuracy >= 0.95
    assert xavier.steps_to() <= 160
    assert abs(zeros.accuracy - 1 / 16) <= 0.05
    assert constant.accuracy < 0.5
    kinds = [verdict.kind for verdict in explain(RaceSetting(), default_race)]
    assert kinds == ["learned", "equal_heads", "all_zero"]


def test_the_keenest_head_looks_at_what_is_to_be_copied(default_race):
    """The weight on the answer, summed by hand: from position 8 + i on keys that hold the same token as key i."""
    labels, maps = probe_labels(RaceSetting()), tracks(default_race)[0].stops[-1].maps[0]
    shares = [
        np.mean([sum(head[8 + i, j] for j in range(16) if labels[j] == labels[i]) for i in range(8)]) for head in maps
    ]
    assert max(shares) > 0.6
    sentence = explain(RaceSetting(), default_race)[0].sentence
    assert f"(head {int(np.argmax(shares))}) now puts {max(shares):.0%} of its weight on the answer" in sentence


def test_what_is_asked_was_not_trained_on():
    asked = {tuple(row) for row in held_out(RaceSetting()).inputs.tolist()}
    trained, _ = first_batch(RaceSetting())
    assert len(asked) > 250
    assert not asked & {tuple(row) for row in trained.tolist()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 3}, "length is 3; it must be a whole number from 4 to 16"),
        ({"steps": 100_000}, "steps is 100000"),
        ({"embed_dim": 32, "num_heads": 5}, "embed_dim 32 is not divisible by num_heads 5 (32 = 5 x 6 + 2)"),
        (
            {"task": "induction", "vocab": 5},
            "induction needs 8 different tokens, but there are 5. Try vocab 8 or length 5",
        ),
        ({"task": "sing"}, "task is sing"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"bias": 1}, "bias is 1"),
    ],
)
def test_settings_that_make_no_race_are_refused(change, words):
    with pytest.raises(MhaError) as caught:
        RaceSetting(**change)
    assert words in str(caught.value).replace(", or length", " or length")
    for suggestion in caught.value.try_:
        RaceSetting(**change | dict(suggestion.changes))


def test_nobody_can_start_an_hour_of_work():
    setting = RaceSetting(length=16, embed_dim=128, layers=2, steps=3_000, batch=256, num_heads=8)
    with pytest.raises(MhaError) as caught:
        race(setting, ["zeros"])  # before anything is asked for
    assert "this race needs about" in str(caught.value)
    for suggestion in caught.value.try_:
        check_race(replace(setting, **dict(suggestion.changes)), ["zeros"])
    assert {suggestion.changes[0][0] for suggestion in caught.value.try_} == {"steps", "batch"}


@pytest.mark.parametrize("racers", [[], ["zeros", "zeros"], ["nothing"], list(RACERS)[:7]])
def test_a_race_needs_a_few_known_racers(racers):
    with pytest.raises(MhaError, match="racers"):
        race(TINY, racers)


def test_every_scheme_may_race():
    assert set(INIT_SCHEMES) < set(RACERS)
    for name in RACERS:
        assert np.isfinite(only(replace(TINY, steps=1), name).points[0].loss)
