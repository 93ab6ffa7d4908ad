"""Every way of writing the layer gives the numbers of the references, for generated sizes, masks and choices.

The references are independent: a head-by-head loop in float64 (tests/core/strategies.py), torch.nn.MultiheadAttention
with its weights set by hand and its mask inverted, and torch's raw fused attention on hand-split heads. Half precision,
gradients and dropout are in test_attention_numerics.py.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

from mha_core import AttentionConfig, kernels, scaled_dot_product_attention
from mha_core.rotary import rotate_positions
from tests.core.strategies import (
    KERNELS,
    TOLERANCE,
    Call,
    assert_near,
    build,
    build_engines,
    calls,
    random_weights,
    reference_attention,
    rng,
)

GENERATED = settings(max_examples=300, deadline=None, derandomize=True)


@GENERATED
@given(calls())
def test_all_engines_equal_the_head_by_head_reference(call: Call) -> None:
    output, weights = reference_attention(call.weights, call.config, *call.full, call.mask)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(kernels, "CHUNK_ROWS", call.chunk_rows)
        for engine, layer in build_engines(call.config, call.weights):
            got, got_weights = layer(call.query, call.key, call.value, call.mask)
            assert got.dtype == call.query.dtype
            assert_near(got, output, engine)
            assert (got_weights is None) == engine.endswith("sdpa")
            if got_weights is not None:
                assert_near(got_weights, weights, engine)


def torch_module(call: Call) -> nn.MultiheadAttention:
    """torch's own module with the call's weights, written into its parameters by hand."""
    config, w = call.config, call.weights
    module = nn.MultiheadAttention(
        config.embed_dim,
        config.num_heads,
        bias=config.bias,
        kdim=config.kdim,
        vdim=config.vdim,
        batch_first=True,
        dtype=w.q.dtype,
    )
    with torch.no_grad():
        if module.in_proj_weight is not None:
            module.in_proj_weight.copy_(torch.cat([w.q, w.k, w.v]))
        else:
            for name in "qkv":
                getattr(module, f"{name}_proj_weight").copy_(getattr(w, name))
        module.out_proj.weight.copy_(w.out)
        if config.bias:
            module.in_proj_bias.copy_(torch.cat([w.q_bias, w.k_bias, w.v_bias]))
            module.out_proj.bias.copy_(w.out_bias)
    return module


@GENERATED
@given(calls(plain=True))
def test_all_engines_equal_torch_multihead_attention(call: Call) -> None:
    (batch, q_len), k_len, heads = call.query.shape[:2], call.full[1].shape[1], call.config.num_heads
    allowed = torch.ones(batch, heads, q_len, k_len, dtype=torch.bool) & (True if call.mask is None else call.mask)
    output, weights = torch_module(call)(
        *call.full, attn_mask=~allowed.flatten(0, 1), need_weights=True, average_attn_weights=False
    )
    # An empty row is NaN in torch and zero here; an output row is compared where all its heads see a key.
    row_has_key = allowed.any(-1)
    query_has_keys = row_has_key.all(1)
    for engine, layer in build_engines(call.config, call.weights):
        got, got_weights = layer(call.query, call.key, call.value, call.mask)
        assert_near(got[query_has_keys], output[query_has_keys], engine)
        if got_weights is not None:
            assert_near(got_weights[row_has_key], weights[row_has_key], engine)
            assert (got_weights[~row_has_key] == 0).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls())
def test_kernels_equal_raw_fused_attention_on_hand_split_heads(call: Call) -> None:
    config, generator, dtype = call.config, rng(17), call.query.dtype
    batch, q_len, k_len = call.query.shape[0], call.query.shape[1], call.full[1].shape[1]
    q = torch.randn(batch, config.num_heads, q_len, config.head_dim, generator=generator, dtype=dtype)
    k, v = torch.randn(2, batch, config.kv_heads, k_len, config.head_dim, generator=generator, dtype=dtype)
    mask = None if call.mask is None else call.mask | ~call.mask.any(-1, keepdim=True)  # no empty row
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=config.scale, enable_gqa=True)
    for kernel in KERNELS:
        context, _ = build(config, call.weights, kernel=kernel).attend(q, k, v, mask)
        torch.testing.assert_close(context, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_masks_of_every_number_of_axes_mean_the_same(kernel: str, axes: int) -> None:
    config = AttentionConfig(14, 2, kernel=kernel)
    layer = build(config, random_weights(config, 3))
    query, memory = torch.randn(3, 5, 14, dtype=torch.float64), torch.randn(3, 7, 14, dtype=torch.float64)
    keep = torch.tensor([True, False, True, True, False, False, True])
    mask = keep.reshape((1,) * (axes - 1) + (7,))
    expected, _ = layer(query, memory[:, keep])  # hiding a key is the same as not having it
    got, _ = layer(query, memory, mask=mask)
    torch.testing.assert_close(got, expected, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_chunk_boundary_with_a_mask_per_row(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    config = AttentionConfig(22, 2)
    weights, generator = random_weights(config, 5), rng(6)
    query = torch.randn(3, 7, 22, generator=generator, dtype=torch.float64)  # 7 rows: 1 x 7, 3 + 3 + 1, exactly 7
    mask = torch.rand(3, 2, 7, 7, generator=generator) < 0.5
    output, maps = reference_attention(weights, config, query, query, query, mask)
    seen: list[int] = []
    explicit = kernels.explicit_kernel
    monkeypatch.setattr(kernels, "CHUNK_ROWS", rows)
    monkeypatch.setattr(kernels, "explicit_kernel", lambda q, *rest: (seen.append(q.shape[-2]), explicit(q, *rest))[1])
    got, got_maps = build(config, weights, kernel="chunked")(query, mask=mask)
    assert seen == {1: [1] * 7, 3: [3, 3, 1], 7: [7]}[rows]
    torch.testing.assert_close(got, output, **TOLERANCE[torch.float64])
    torch.testing.assert_close(got_maps, maps, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_weights_unless_wanted(kernel: str) -> None:
    config = AttentionConfig(15, 3, kernel=kernel)
    layer, query = build(config, random_weights(config, 7)), torch.randn(2, 5, 15, dtype=torch.float64)
    with_weights, without_weights = layer(query), layer(query, need_weights=False)
    assert without_weights[1] is None
    torch.testing.assert_close(without_weights[0], with_weights[0], rtol=0, atol=0)


def test_rotation_equals_transformers_and_the_hand_formula() -> None:
    config = LlamaConfig(hidden_size=30, num_attention_heads=3, num_key_value_heads=3, rope_theta=10_000.0)
    q, k = torch.randn(2, 2, 3, 7, 10, generator=rng(8))
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(7)[None])
    for ours, theirs in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(rotate_positions(ours, 10_000.0), theirs, rtol=1e-5, atol=1e-5)
    one = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # D = 2: one pair, angle = position
    expected = torch.tensor([[math.cos(2), math.sin(2)], [math.cos(3), math.sin(3)]])
    torch.testing.assert_close(rotate_positions(one, 500.0, first=2), expected)


def llama(config: AttentionConfig, weights: dict[str, Tensor], layer_config: LlamaConfig) -> LlamaAttention:
    module = LlamaAttention(layer_config, layer_idx=0).double().eval()
    module.load_state_dict(weights)
    return module


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_groups_and_rotation_equal_llama(kv_heads: int) -> None:
    config = AttentionConfig(24, 6, num_kv_heads=kv_heads, bias=False, rope_theta=10_000.0)
    w = random_weights(config, 11)
    theirs = LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=kv_heads, rope_theta=10_000.0, head_dim=4
    )
    theirs._attn_implementation = "eager"
    state = {"q_proj.weight": w.q, "k_proj.weight": w.k, "v_proj.weight": w.v, "o_proj.weight": w.out}
    x = torch.randn(2, 7, 24, dtype=torch.float64, generator=rng(12))
    angles = LlamaRotaryEmbedding(theirs)(x, torch.arange(7)[None].expand(2, 7))
    additive = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, maps = llama(config, state, theirs)(x, position_embeddings=angles, attention_mask=additive)
    for engine, layer in build_engines(config, w):
        got, got_maps = layer(x, mask=torch.ones(7, 7).tril().bool())
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=engine)  # their angles are float32
        if got_maps is not None:
            torch.testing.assert_close(got_maps, maps, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("theta", [None, 10_000.0])
def test_decoding_one_query_equals_the_last_row_of_the_causal_pass(kernel: str, theta: float | None) -> None:
    config = AttentionConfig(20, 5, rope_theta=theta, kernel=kernel)
    layer = build(config, random_weights(config, 13))
    x = torch.randn(3, 11, 20, dtype=torch.float64, generator=rng(14))
    full, _ = layer(x, mask=torch.ones(11, 11).tril().bool())
    step, _ = layer(x[:, -1:], x, mask=torch.ones(1, 11).tril(10).bool())
    torch.testing.assert_close(step, full[:, -1:], **TOLERANCE[torch.float64])


@pytest.mark.parametrize(
    ("leading", "mask_shape"),
    [((), (5, 7)), ((3,), (5, 7)), ((3,), (3, 5, 7)), ((3,), (3, 1, 7)), ((3, 2), (3, 1, 5, 7))],
)
def test_equation_on_two_three_and_four_axes(leading: tuple[int, ...], mask_shape: tuple[int, ...]) -> None:
    generator = rng(15)
    q = torch.randn(*leading, 5, 4, generator=generator, dtype=torch.float64)
    k = torch.randn(*leading, 7, 4, generator=generator, dtype=torch.float64)
    v = torch.randn(*leading, 7, 3, generator=generator, dtype=torch.float64)  # values of another width
    mask = torch.rand(mask_shape, generator=generator) < 0.7
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    output, weights = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(output, expected, **TOLERANCE[torch.float64])
    assert weights.shape == (*leading, 5, 7)


def test_equation_never_grows_axes_by_a_mask() -> None:
    """A four-axis mask on three-axis inputs must be refused or fit; broadcasting would mix the batch entries."""
    q = torch.randn(3, 5, 4)
    try:
        output, _ = scaled_dot_product_attention(q, q, q, torch.ones(3, 1, 5, 5).bool())
    except ValueError:
        return
    assert output.shape == (3, 5, 4)
