"""The head grid's message, taken apart: levels that mean what they say, sizes within their share, labels as typed.

Level 0 is hidden, 1 is not a number, 2 to 255 run from a head's lowest to its highest value; whatever is encoded must
come back within half a level. The worst case for the PNG is noise, so noise it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mha_core import Experiment, RandomSource, run
from mha_core.config import AttentionConfig
from tests.lenses.reference import pooled
from tests.ui.page import GridMessage, read_message
from ui import compute, head_grid, theme


def noise(heads: int, rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(heads, rows, columns)).astype(np.float32)


def nothing_hidden(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.zeros(values.shape, dtype=bool)


def packed(values: NDArray[np.float32], hidden: NDArray[np.bool_], **changes: Any) -> GridMessage:
    """Encode, pack and decode."""
    maps = head_grid.encode_maps(values, hidden)
    assert maps is not None
    _, rows, columns = values.shape
    look = {
        "table": theme.SEQUENTIAL_TABLE,
        "scale": "fixed",
        "low": 0.0,
        "high": 1.0,
        "q_labels": [f"q{row}" for row in range(rows)],
        "k_labels": [f"k{column}" for column in range(columns)],
        "head": 0,
        "rows": [0],
        "unit": "weights",
        "exact": values[:, 0],
    }
    return read_message(head_grid.message(maps, head_grid.GridLook(**look | changes)))


def test_special_levels() -> None:
    values = np.array([[[0.0, 0.5, np.nan], [1.0, np.inf, 0.25]]], dtype=np.float32)
    hidden = np.array([[[True, False, False], [False, False, False]]])
    levels, low, high = head_grid.quantise(values, hidden)
    assert levels.dtype == np.uint8
    assert levels.tolist() == [[[0, 86, 1], [255, 1, 2]]]  # 0.25..1.0: 0.5 is a third of 253 levels, above level 2
    assert (low, high) == ((0.25,), (1.0,))


def test_a_hidden_nan_is_hidden() -> None:
    levels, _, _ = head_grid.quantise(np.full((1, 2, 2), np.nan, dtype=np.float32), np.ones((1, 2, 2), dtype=bool))
    assert not levels.any()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-30, 1e30])
def test_constant_maps(value: float) -> None:
    message = packed(np.full((3, 5, 7), value, dtype=np.float32), np.zeros((3, 5, 7), dtype=bool))
    assert np.allclose(message.values(), value, rtol=1e-6)


def test_heads_without_any_number() -> None:
    values = noise(3, 5, 7)
    hidden = nothing_hidden(values)
    hidden[0] = True
    values[1] = np.nan
    message = packed(values, hidden)
    assert not message.levels[0].any()
    assert (message.levels[1] == 1).all()
    assert np.all(np.abs(message.values()[2] - values[2]) <= message.tolerance()[2])


@pytest.mark.parametrize("seed", range(5))
def test_every_value_comes_back_within_half_a_level(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = noise(5, 7, 11, seed) * np.float32(10) ** draw.integers(-6, 7, (5, 1, 1)).astype(np.float32)
    hidden = draw.random(values.shape) < 0.3
    message = packed(values, hidden)
    assert np.array_equal(message.levels == 0, hidden)
    span = np.where(hidden, -np.inf, values).max((1, 2)) - np.where(hidden, np.inf, values).min((1, 2))
    off = np.abs(message.values() - values)[~hidden]
    assert np.all(off <= (np.broadcast_to(span[:, None, None] / 506 * 1.001, values.shape))[~hidden])
    for head in range(5):  # both ends are used, so the range is as narrow as it can be
        assert message.levels[head].max() == 255
        assert message.levels[head][~hidden[head]].min() == 2


def test_the_header_says_what_is_where() -> None:
    values = noise(2, 3, 5)
    exact = noise(2, 1, 5, seed=9)[:, 0]
    message = packed(values, nothing_hidden(values), scale="log", low=-2.0, high=2.0, head=1, rows=[2], exact=exact)
    header = message.header
    assert (header["heads"], header["rows"], header["columns"], header["head"], header["chosen"]) == (2, 3, 5, 1, [2])
    assert (header["scale"], header["range"], header["unit"]) == ("log", [-2, 2], "weights")
    assert np.array_equal(message.exact, exact)
    assert np.array_equal(message.table, theme.SEQUENTIAL_TABLE)
    assert header["low"] == pytest.approx(values.min((1, 2)))
    assert header["high"] == pytest.approx(values.max((1, 2)))


def test_labels_are_text_and_short() -> None:
    words = ["<b>x</b>", "ein" * 50, "\u202e", '"\\', "👩‍👩‍👧"]
    values = noise(1, 5, 5)
    labels = packed(values, nothing_hidden(values), q_labels=words, k_labels=words).header["q"]
    assert [labels[i] for i in (0, 2, 3, 4)] == [words[i] for i in (0, 2, 3, 4)]
    assert len(labels[1]) <= 24
    assert labels[1].startswith("einein")
    assert labels[1].endswith("…")


def test_the_exact_rows_start_on_a_multiple_of_four() -> None:
    """JavaScript reads float32 in place only there."""
    for width in range(1, 9):
        values = noise(1, 1, width)
        maps = head_grid.encode_maps(values, nothing_hidden(values))
        assert maps is not None
        look = head_grid.GridLook(
            theme.SEQUENTIAL_TABLE, "fixed", 0, 1, ["q" * width], ["k"] * width, 0, [0], "u", values[:, 0]
        )
        content = head_grid.message(maps, look)
        assert (4 + int.from_bytes(content[:4], "little")) % 4 == 0
        assert np.array_equal(read_message(content).exact, values[:, 0])


@pytest.mark.parametrize("side", [124, 136, 144, 150])
def test_what_hardly_fits_is_coarser_and_still_true(side: int) -> None:
    """Noise of eight heads: fewer steps of value before fewer cells, 31 at least."""
    values = noise(8, side, side)
    hidden = np.random.default_rng(1).random(values.shape) < 0.05
    values[3, 5, 7], hidden[3, 5, 7] = np.nan, False
    message = packed(values, hidden)
    assert np.array_equal(message.levels == 0, hidden)
    assert np.argwhere(message.levels == 1).tolist() == [[3, 5, 7]]
    span = np.nanmax(values, (1, 2)) - np.nanmin(values, (1, 2))
    off = np.nan_to_num(np.abs(message.values() - values))
    assert np.all(off <= span[:, None, None] * (1 / 62 + 1 / 506) * 1.001)  # rounded to a level, then to a step
    assert message.size_bytes <= 150_000


def test_what_does_not_fit_is_not_encoded() -> None:
    large = noise(8, 512, 512)
    assert head_grid.encode_maps(large, nothing_hidden(large)) is None
    plain = np.zeros((8, 512, 512), dtype=np.float32)
    encoded = head_grid.encode_maps(plain, nothing_hidden(plain))
    assert encoded is not None
    assert len(encoded.levels) <= head_grid.byte_budget(8)


def test_budgets() -> None:
    """Eight heads stay under 150 kB with everything else in the message, any number of heads under 300 kB."""
    budgets = [head_grid.byte_budget(heads) for heads in range(1, 1025)]
    assert budgets == sorted(budgets)
    assert budgets[7] < 150_000
    assert max(budgets) < 300_000


@pytest.mark.parametrize(
    ("heads", "length"),
    [(1, 256), (1, 1000), (8, 256), (8, 509), (8, 1000), (16, 256), (16, 701), (64, 256), (64, 401)],
)
@pytest.mark.parametrize("stage", ["scores", "weights"])
def test_noise_stays_within_its_budget(heads: int, length: int, stage: str) -> None:
    """Large random scores; with a gain the weights are noise too. The maps are still the pooled numbers."""
    noisy = Experiment(
        RandomSource(batch=1, q_len=length),
        AttentionConfig(embed_dim=16 * heads, num_heads=heads, scale=0.7 if stage == "scores" else 0.02),
        seed=length,
    )
    grid = compute.grid(noisy, 0, stage, "max")
    assert len(grid.maps.levels) <= head_grid.byte_budget(heads)
    assert (grid.maps.rows, grid.maps.columns) == grid.values.shape[1:]
    assert grid.maps.rows == -(-length // grid.q_block)
    assert grid.maps.rows >= 16
    tensor = getattr(run(noisy), stage)[0, -1:].double().numpy()
    values, _ = pooled(tensor, np.ones(tensor.shape, dtype=bool), grid.maps.rows, "max")
    assert np.allclose(grid.values[-1], values[0], rtol=1e-5, atol=1e-6)


def test_short_sequences_are_not_pooled() -> None:
    for length in (1, 2, 64, 97):
        grid = compute.grid(Experiment(RandomSource(1, length), AttentionConfig(64, 8)), 0, "scores", "max")
        assert (grid.q_block, grid.k_block) == (1, 1)
    wide = compute.grid(Experiment(RandomSource(1, 3, 701), AttentionConfig(64, 8)), 0, "weights", "max")
    assert wide.q_block == 1
    assert wide.values.shape[1] == 3
