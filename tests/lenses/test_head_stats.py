"""The numbers of a head on maps drawn by hand: each property on the rows that make it obvious, each formula against a
row-by-row computation, and the likeness of heads on maps whose likeness is known. Rows that may attend to nothing and
rows of padding must not count.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core import Run
from mha_core.lenses.head_stats import counted_rows, head_similarity, head_stats
from tests.lenses.reference import done, entropy, similarity

PLAIN = {"embed_dim": 6, "num_heads": 3, "source": "random", "batch": 1}


def with_maps(maps: list[list[list[float]]] | Tensor, **fields: object) -> Run:
    """A run whose weights are these (H, Sq, Sk); H must be 3 unless said otherwise."""
    weights = torch.as_tensor(maps, dtype=torch.float64)
    heads, q_len, k_len = weights.shape
    sizes = {"q_len": q_len, "k_len": None if q_len == k_len else k_len, "num_heads": heads, "embed_dim": 2 * heads}
    return replace(done(**PLAIN | sizes | fields), weights=weights[None])


def random_maps(heads: int, q_len: int, k_len: int, seed: int) -> Tensor:
    draws = torch.rand(heads, q_len, k_len, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 4
    return draws / draws.sum(-1, keepdim=True)


@pytest.mark.parametrize("length", [2, 3, 7, 13])
def test_uniform_rows(length: int) -> None:
    stats = head_stats(with_maps(torch.full((3, length, length), 1 / length)))
    for head, numbers in enumerate(stats):
        assert numbers.head == head
        assert numbers.entropy_nats == pytest.approx(math.log(length))
        assert numbers.relative_entropy == pytest.approx(1)
        assert numbers.effective_keys == pytest.approx(length)
        assert numbers.diagonal == pytest.approx(1 / length)
        assert numbers.previous == pytest.approx((length - 1) / length / length)  # the first row has no token before
        assert numbers.maximum == pytest.approx(1 / length)
        assert numbers.row_sum == pytest.approx(1)


def test_one_hot_rows() -> None:
    eye = torch.eye(5)
    before = torch.zeros(5, 5)
    before[range(5), [0, 0, 1, 2, 3]] = 1
    first = torch.zeros(5, 5)
    first[:, 0] = 1
    itself, previous, sink = head_stats(with_maps(torch.stack([eye, before, first])))
    for numbers in (itself, previous, sink):
        assert (numbers.entropy_nats, numbers.relative_entropy, numbers.effective_keys) == (0, 0, 1)
        assert (numbers.maximum, numbers.row_sum) == (1, 1)
    assert (itself.diagonal, itself.previous, itself.first, itself.mean_distance) == (1, 0, 0.2, 0)
    assert (previous.diagonal, previous.previous, previous.first) == (0.2, 0.8, 0.4)
    assert previous.mean_distance == pytest.approx(4 / 5)
    assert (sink.diagonal, sink.previous, sink.first, sink.mean_distance) == (0.2, 0.2, 1, 2)


def test_a_map_computed_by_hand() -> None:
    maps = [[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.0, 0.6, 0.4]]] * 3
    numbers = head_stats(with_maps(maps))[1]
    assert numbers.diagonal == pytest.approx((0.5 + 0.2 + 0.4) / 3)
    assert numbers.previous == pytest.approx((0 + 0.1 + 0.6) / 3)
    assert numbers.first == pytest.approx((0.5 + 0.1 + 0.0) / 3)
    assert numbers.mean_distance == pytest.approx(((0.25 + 2 * 0.25) + (0.1 + 0.7) + 0.6) / 3)
    assert numbers.maximum == pytest.approx((0.5 + 0.7 + 0.6) / 3)
    half_bits = 0.5 * math.log(2) + 0.5 * math.log(4)
    other = -(0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.7 * math.log(0.7))
    last = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    assert numbers.entropy_nats == pytest.approx((half_bits + other + last) / 3)
    assert numbers.relative_entropy == pytest.approx((half_bits + other + last) / 3 / math.log(3))
    assert numbers.effective_keys == pytest.approx((math.exp(half_bits) + math.exp(other) + math.exp(last)) / 3)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
def test_distances_follow_the_alignment(alignment: str) -> None:
    """Two queries over five keys: bottom-right they stand at keys 3 and 4, top-left at keys 0 and 1."""
    maps = torch.zeros(1, 2, 5)
    maps[0, 0, 3] = maps[0, 1, 4] = 1
    numbers = head_stats(with_maps(maps, alignment=alignment))[0]
    assert (numbers.diagonal, numbers.mean_distance) == ((1, 0) if alignment == "bottom_right" else (0, 3))


def test_rows_without_a_key_do_not_count() -> None:
    fields = {"mask": ("custom",), "custom_mask": ("111", "000", "110")}
    maps = torch.tensor([[[0.2, 0.3, 0.5], [9.0, 9.0, 9.0], [0.25, 0.75, 0.0]]] * 3)
    result = with_maps(maps, **fields)
    assert counted_rows(result).tolist() == [0, 2]
    numbers = head_stats(result)[2]
    assert numbers.diagonal == pytest.approx((0.2 + 0.0) / 2)
    assert numbers.row_sum == pytest.approx(1)
    expected = entropy(np.array([0.2, 0.3, 0.5])) / math.log(3), entropy(np.array([0.25, 0.75])) / math.log(2)
    assert numbers.relative_entropy == pytest.approx(sum(expected) / 2, rel=1e-6)


def test_rows_of_padding_do_not_count() -> None:
    result = done(text="one two three four five\nsix seven", embed_dim=6, num_heads=3, mask=("padding",))
    assert counted_rows(result, 0).tolist() == [0, 1, 2, 3, 4]
    assert counted_rows(result, 1).tolist() == [0, 1]
    changed = result.weights.clone()
    changed[1, :, 2:] = 77.0  # whatever filler rows hold
    spoiled = replace(result, weights=changed)
    assert head_stats(spoiled, 1) == head_stats(result, 1)
    assert head_similarity(spoiled, 1) == head_similarity(result, 1)
    assert head_similarity(result, 1).rows_compared == 2


def test_a_single_key_leaves_relative_entropy_undefined() -> None:
    numbers = head_stats(done(text="alone", embed_dim=6, num_heads=3))[0]
    assert math.isnan(numbers.relative_entropy)
    assert (numbers.entropy_nats, numbers.effective_keys, numbers.maximum) == (0, 1, 1)
    causal = head_stats(done(text="one two", embed_dim=6, num_heads=3, mask=("causal",)))[0]
    assert 0 < causal.relative_entropy <= 1  # the first row, with its single key, is not in the mean


def test_no_row_counts() -> None:
    result = done(text="one two", embed_dim=6, num_heads=3, mask=("custom",), custom_mask=("00", "00"))
    for numbers in head_stats(result):
        values = {name: value for name, value in asdict(numbers).items() if name != "head"}
        assert all(math.isnan(value) for value in values.values()), values


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_real_weights_row_by_row(dtype: str) -> None:
    result = done(text="a b c d e f g\nh i j", embed_dim=30, num_heads=5, mask=("padding", "causal"), dtype=dtype)
    for sample, length in enumerate((7, 3)):
        maps = result.weights[sample].double().numpy()
        for head, numbers in enumerate(head_stats(result, sample)):
            rows = maps[head, :length]
            assert numbers.entropy_nats == pytest.approx(np.mean([entropy(row) for row in rows]), rel=1e-5)
            assert numbers.effective_keys == pytest.approx(np.mean([math.exp(entropy(r)) for r in rows]), rel=1e-5)
            assert numbers.diagonal == pytest.approx(np.mean([rows[i, i] for i in range(length)]))
            far = [sum(abs(i - j) * rows[i, j] for j in range(7)) for i in range(length)]
            assert numbers.mean_distance == pytest.approx(np.mean(far))


def test_similarity_of_known_maps() -> None:
    """Head 1 equals head 0, head 2 shares no key with them; (1, 0) against (1/2, 1/2) is worked out below."""
    left, right = [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]
    even = [[0.5, 0.5], [0.5, 0.5]]
    matrix = head_similarity(with_maps([left, left, right, even])).matrix
    assert matrix[0][1] == pytest.approx(1)
    assert matrix[0][2] == pytest.approx(0, abs=1e-12)
    middle_bits = 0.75 * math.log2(4 / 3) + 0.25 * math.log2(4)  # entropy of (3/4, 1/4)
    assert matrix[0][3] == pytest.approx(1 - (middle_bits - (0 + 1) / 2))


def test_similarity_against_the_definition() -> None:
    maps = random_maps(5, 7, 11, seed=3)
    found = head_similarity(with_maps(maps))
    matrix = np.array(found.matrix)
    assert np.array_equal(matrix, matrix.T)
    assert np.array_equal(np.diag(matrix), np.ones(5))
    assert found.rows_compared == 7
    assert sorted(found.order) == [0, 1, 2, 3, 4]
    for a in range(5):
        for b in range(a):
            assert matrix[a, b] == pytest.approx(similarity(maps[a].numpy(), maps[b].numpy()), abs=1e-12)


def test_long_sequences_are_sampled() -> None:
    same_rows = torch.softmax(torch.arange(1500.0).reshape(3, 500) % 7, -1)
    maps = same_rows[:, None].expand(3, 500, 500)
    found = head_similarity(with_maps(maps))
    assert 0 < found.rows_compared <= 256
    expected = similarity(maps[0, :1].double().numpy(), maps[1, :1].double().numpy())
    assert found.matrix[0][1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["noise", "disjoint"])
def test_twins_stand_side_by_side(kind: str, seed: int) -> None:
    """Three pairs of equal heads, shuffled: in the order each head stands beside its twin."""
    places = list(range(6))
    random.Random(seed).shuffle(places)
    originals = random_maps(3, 5, 7, seed)
    if kind == "disjoint":  # heads of different pairs never look at the same key
        originals = torch.zeros(3, 5, 7, dtype=torch.float64)
        originals[range(3), :, range(3)] = 1
    maps = torch.stack([originals[place // 2] for place in places])
    order = head_similarity(with_maps(maps)).order
    pairs = [places[head] // 2 for head in order]
    assert sorted(order) == list(range(6))
    assert all(pairs[i] == pairs[i + 1] for i in (0, 2, 4)), pairs
