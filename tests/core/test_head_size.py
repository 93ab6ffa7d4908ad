"""Heads of a width of their own, head_size: sizes, shapes of the matrices, advice, memory. Primes, so nothing is tied.

The numbers of such layers are covered by every generated call of `tests.core.strategies`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention

from mha_core import AttentionConfig, Experiment, MhaError, MultiHeadAttention
from mha_core.budget import KEPT_MATRICES, run_bytes
from mha_core.experiment import prepare
from mha_core.init_schemes import TARGETS, InitSpec, initial_weights
from mha_core.layouts import LAYOUTS
from tests.core.strategies import build, random_weights, rng

FAST = settings(max_examples=200, deadline=None, derandomize=True)


def mistake(**choices: Any) -> MhaError:
    with pytest.raises(MhaError) as caught:
        AttentionConfig(**choices)
    return caught.value


def test_the_width_of_a_head_may_be_given() -> None:
    config = AttentionConfig(13, 6, num_kv_heads=3, head_size=7)
    assert (config.head_dim, config.joined_dim) == (7, 42)
    assert config.softmax_scale == pytest.approx(1 / math.sqrt(7))
    tied = AttentionConfig(30, 6)
    assert (tied.head_size, tied.head_dim, tied.joined_dim) == (None, 5, 30)


@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_matrices_have_the_shapes_of_the_heads(projection: str) -> None:
    layer = MultiHeadAttention(13, 6, num_kv_heads=3, head_size=7, projection=projection)
    shapes = [tuple(getattr(layer.weights(), name).shape) for name in TARGETS]
    assert shapes == [(42, 13), (21, 13), (21, 13), (13, 42)]
    assert layer(torch.randn(2, 5, 13))[0].shape == (2, 5, 13)


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_llama_with_a_head_dim_of_its_own(kv_heads: int) -> None:
    config = AttentionConfig(24, 6, num_kv_heads=kv_heads, head_size=10, bias=False, rope_theta=10_000.0)
    weights = random_weights(config, 1)
    theirs = LlamaConfig(hidden_size=24, num_attention_heads=6, num_key_value_heads=kv_heads, head_dim=10)
    theirs._attn_implementation = "eager"
    module = LlamaAttention(theirs, layer_idx=0).double().eval()
    module.load_state_dict(LAYOUTS["llama"].pack(weights, config))
    query = torch.randn(3, 7, 24, dtype=torch.float64, generator=rng(2))
    half = torch.arange(7.0).double()[:, None] * 10_000.0 ** (-2 * torch.arange(5.0).double() / 10)
    angles = torch.cat([half, half], -1)[None]
    expected = module(query, position_embeddings=(angles.cos(), angles.sin()), attention_mask=None)[0]
    torch.testing.assert_close(build(config, weights)(query)[0], expected, rtol=0, atol=1e-6)  # its softmax is float32


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_keep_every_row(name: str) -> None:
    config = AttentionConfig(13, 6, num_kv_heads=3, head_size=7)
    weights = random_weights(config, 3)
    back = LAYOUTS[name].unpack(LAYOUTS[name].pack(weights, config), config)
    for target in TARGETS:
        assert torch.equal(getattr(weights, target), getattr(back, target)), target


@pytest.mark.parametrize("name", TARGETS)
def test_schemes_see_the_real_shapes(name: str) -> None:
    """Xavier's variance is 2 / (fan_in + fan_out), Kaiming's 2 / fan_in, of matrices that are not square."""
    fan_out, fan_in = (5 * 97, 211) if name == "q" else (97, 211) if name in ("k", "v") else (211, 5 * 97)
    config = AttentionConfig(211, 5, num_kv_heads=1, head_size=97)
    for scheme, variance in (("xavier_normal", 2 / (fan_in + fan_out)), ("kaiming_normal", 2 / fan_in)):
        matrix = getattr(initial_weights(config, InitSpec(scheme), 5), name)
        assert matrix.shape == (fan_out, fan_in)
        assert matrix.var().item() == pytest.approx(variance, rel=6 * math.sqrt(2 / matrix.numel()))


@FAST
@example(1, 1024, 3, True)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_untying_repairs_what_does_not_divide(embed_dim: int, num_heads: int, kv_heads: int, rotary: bool) -> None:
    choices = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": kv_heads}
    choices |= {"rope_theta": 10.0} if rotary else {}
    if embed_dim % num_heads == 0:
        return
    last = mistake(**choices).try_[-1]
    repaired = AttentionConfig(**choices | dict(last.changes))
    assert (repaired.embed_dim, repaired.num_heads) == (embed_dim, num_heads)
    assert abs(repaired.head_dim - embed_dim // num_heads) <= 1 + (embed_dim < num_heads)
    assert last.text.startswith(f"untie it: head_size {repaired.head_dim}")


def test_the_sentence_offers_it() -> None:
    assert str(mistake(embed_dim=512, num_heads=7)).endswith("518, or untie it: head_size 73.")


@pytest.mark.parametrize(("size", "offered"), [(1, [2]), (7, [6, 8]), (16_383, [16_382, 16_384])])
def test_odd_heads_cannot_turn(size: int, offered: list[int]) -> None:
    error = mistake(embed_dim=13, num_heads=3, head_size=size, rope_theta=10_000.0)
    assert error.field == "head_size"
    assert f"head_size is {size}, an odd number" in str(error)
    assert "num_heads" not in str(error)
    sizes = [dict(choice.changes).get("head_size") for choice in error.try_]
    assert sizes == [*offered, None]
    assert AttentionConfig(13, 3, head_size=offered[0], rope_theta=10_000.0).head_dim == offered[0]


@pytest.mark.parametrize("size", [0, -1, 16_385, 7.0, "7", True])
def test_sizes_out_of_range(size: object) -> None:
    assert "head_size is" in str(mistake(embed_dim=13, num_heads=3, head_size=size))


def test_it_travels_as_a_field() -> None:
    experiment = Experiment.from_fields({"embed_dim": 13, "num_heads": 3, "head_size": 7})
    assert "head_size=7" in experiment.to_query()
    assert Experiment.from_query(experiment.to_query())[0] == experiment
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert Experiment.from_fields({"embed_dim": 12, "num_heads": 3}).attention.head_size is None


def test_memory_is_that_of_the_tensors() -> None:
    """E = 13, H·D = 42, Hkv·D = 21, B = 2, Sq = 5, Sk = 3, float32."""
    config = AttentionConfig(13, 6, num_kv_heads=3, head_size=7)
    matrices = 2 * 13 * 42 + 2 * 13 * 21
    queries, keys = 13 + 42 + 42 + 13, 13 + 13 + 2 * 21 + 2 * 42  # input, q, context, output; inputs, k, v, shared
    square = KEPT_MATRICES * 6 * 5 * 3
    assert run_bytes(config, 2, 5, 3) == 4 * (2 * matrices + 2 * (5 * queries + 3 * keys + square))


def test_advice_for_what_is_too_large_shrinks_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(2**20))
    fields = {"source": "random", "batch": 1, "q_len": 3, "embed_dim": 64, "num_heads": 2, "head_size": 4099}
    with pytest.raises(MhaError) as caught:
        prepare(Experiment.from_fields(fields))
    narrower = [dict(choice.changes) for choice in caught.value.try_ if "embed_dim" in dict(choice.changes)]
    assert narrower
    prepare(Experiment.from_fields(fields | narrower[0]))
