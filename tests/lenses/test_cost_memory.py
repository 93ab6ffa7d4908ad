"""Memory by number format against real tensors, and the length where attention overtakes the projections."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mha_core import AttentionConfig, Experiment, MhaError, MultiHeadAttention
from mha_core.experiment import run
from mha_core.lenses.cost_growth import crossing, growth
from mha_core.lenses.cost_memory import groupings, kv_cache_bytes, memory_by_dtype

LAYER = {"embed_dim": 36, "num_heads": 6, "num_kv_heads": 2}
DTYPES = ("float32", "float64", "bfloat16", "float16", "autocast")


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields({"source": "random"} | fields)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_those_of_real_keys_values_and_weights(dtype: str) -> None:
    """The cache holds a run's own k and v; the attention matrix is its weights."""
    result = run(experiment(**LAYER, batch=3, q_len=5, k_len=7, dtype=dtype))
    (found,) = [row for row in memory_by_dtype(result.experiment) if row.dtype == dtype]
    assert found.kv_cache_bytes == result.k.nbytes + result.v.nbytes
    assert found.attention_matrix_bytes == result.weights.nbytes
    assert found.itemsize == result.weights.itemsize


def test_every_number_format_has_a_row_whatever_is_chosen() -> None:
    answers = [memory_by_dtype(experiment(**LAYER, dtype=dtype), 11) for dtype in DTYPES]
    assert [row.dtype for row in answers[0]] == list(DTYPES)
    assert all(answer == answers[0] for answer in answers)
    assert [row.kv_cache_bytes for row in answers[0]] == [2 * 2 * 11 * 2 * 6 * item for item in (4, 8, 2, 2, 2)]


def test_a_published_cache() -> None:
    """Llama-2-7B has 32 heads of 128: 32 layers at 2,048 tokens in float16 take 1 GiB."""
    layer = AttentionConfig(embed_dim=4096, num_heads=32)
    assert 32 * kv_cache_bytes(layer, 1, 2048, 2) == 2**30


@pytest.mark.parametrize("context", [0, -1, 2**24 + 1])
def test_a_context_out_of_range_is_refused(context: int) -> None:
    with pytest.raises(MhaError, match="context is"):
        memory_by_dtype(experiment(), context)
    with pytest.raises(MhaError, match="context is"):
        groupings(experiment(), context)


def test_every_grouping_against_a_layer_that_has_it() -> None:
    found = groupings(experiment(**LAYER, batch=1, q_len=7), 5)
    assert [row.kv_heads for row in found] == [1, 2, 3, 6]
    assert [row.kind for row in found] == ["multi-query", "grouped", "grouped", "multi-head"]
    assert [row.is_chosen for row in found] == [False, True, False, False]
    for row in found:
        layer = MultiHeadAttention(embed_dim=36, num_heads=6, num_kv_heads=row.kv_heads)
        assert row.parameters == sum(parameter.numel() for parameter in layer.parameters())
        tokens = torch.randn(1, 5, 36)
        _, k, v = layer.project(tokens, tokens, tokens)
        assert row.kv_cache_bytes == k.nbytes + v.nbytes
        projections = 2 * 7 * (2 * 36 * 36 + 2 * 36 * row.kv_heads * 6)
        assert row.matmul_flops == projections + 2 * 2 * 7 * 7 * 36


def more_attention_than_projections(config: AttentionConfig, length: float, keys_per_query: float) -> bool:
    """Written per multiply-add, head by head, apart from the lens."""
    per_head = 2 * config.head_dim * keys_per_query
    channels, kv_channels = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    projections = 2 * config.embed_dim * channels + kv_channels * (config.key_dim + config.value_dim)
    return length * config.num_heads * per_head > length * projections


def bisect(config: AttentionConfig, *, causal: bool) -> float:
    low, high = 0.0, 1e7
    for _ in range(80):
        middle = (low + high) / 2
        keys = (middle + 1) / 2 if causal else middle
        low, high = (low, middle) if more_attention_than_projections(config, middle, keys) else (middle, high)
    return low


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"embed_dim": 35, "num_heads": 5},
        {"embed_dim": 36, "num_heads": 6, "num_kv_heads": 2},
        {"embed_dim": 36, "num_heads": 6, "num_kv_heads": 1, "kdim": 13, "vdim": 17},
        {"embed_dim": 37, "num_heads": 6, "num_kv_heads": 2, "head_size": 11},
    ],
    ids=str,
)
def test_the_crossing_is_where_bisection_finds_it(fields: dict[str, Any]) -> None:
    config = AttentionConfig(**fields)
    found = crossing(config)
    assert found.full_square == pytest.approx(bisect(config, causal=False), rel=1e-9)
    assert found.causal_half == pytest.approx(bisect(config, causal=True), rel=1e-9)


def test_the_crossing_of_plain_self_attention() -> None:
    """Twice the width over the full square; four times, less one, for the causal half."""
    found = crossing(AttentionConfig(embed_dim=34, num_heads=2))
    assert (found.full_square, found.causal_half) == (68, 135)
    untied = crossing(AttentionConfig(embed_dim=34, num_heads=3, head_size=7))
    assert (untied.full_square, untied.causal_half) == (68, 135), "the width of the heads cancels"


def test_growth_meets_at_the_crossing_and_marks_the_own_length() -> None:
    rows = {row.length: row for row in growth(experiment(embed_dim=32, num_heads=4, q_len=37, mask=("causal",)))}
    assert 37 in rows
    assert rows[64].attention_flops == rows[64].projection_flops == 8 * 32 * 32 * 64
    assert rows[32].attention_flops < rows[32].projection_flops
    assert rows[64].needed_attention_flops == 4 * 32 * 64 * 65 // 2
    assert rows[131_072].attention_flops == 4 * 32 * 131_072**2


def test_growth_of_a_window_is_linear_and_of_a_custom_mask_unknown() -> None:
    rows = growth(experiment(embed_dim=32, num_heads=4, mask=("local", "padding"), window=3))
    assert rows[-1].needed_attention_flops == 4 * 32 * (7 * 131_072 - 12)
    rows = growth(experiment(q_len=2, mask=("custom",), custom_mask=("10", "01")))
    assert {row.needed_attention_flops for row in rows} == {None}
