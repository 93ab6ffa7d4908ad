"""The closed forms against what is really there, for every kind of head grouping, width, projection and input.

That is: the FLOPs that torch's counter sees in the layer's own forward pass, and the elements of its parameters.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mha_core import AttentionConfig, MultiHeadAttention
from mha_core.lenses.cost import matmul_flops, parameter_count

LAYERS: tuple[dict[str, Any], ...] = (
    {"embed_dim": 35, "num_heads": 5},
    {"embed_dim": 35, "num_heads": 1},
    {"embed_dim": 14, "num_heads": 14},
    {"embed_dim": 42, "num_heads": 6, "num_kv_heads": 1},
    {"embed_dim": 42, "num_heads": 6, "num_kv_heads": 2},
    {"embed_dim": 42, "num_heads": 6, "num_kv_heads": 3, "kdim": 11, "vdim": 13},
    {"embed_dim": 21, "num_heads": 3, "kdim": 5},
    {"embed_dim": 21, "num_heads": 3, "vdim": 17},
    {"embed_dim": 30, "num_heads": 3, "projection": "fused"},
    {"embed_dim": 60, "num_heads": 6, "num_kv_heads": 2, "projection": "fused", "qkv_layout": "interleaved"},
    {"embed_dim": 30, "num_heads": 3, "head_split": "einops", "rope_theta": 100.0},
    {"embed_dim": 13, "num_heads": 6, "num_kv_heads": 2, "head_size": 7, "kdim": 11},
    {"embed_dim": 41, "num_heads": 3, "head_size": 2, "projection": "fused", "qkv_layout": "interleaved"},
)
SIZES = ((1, 1, 1), (2, 7, 7), (3, 11, 5), (1, 2, 13))


def layer_and_inputs(
    fields: dict[str, Any], batch: int, q_len: int, k_len: int
) -> tuple[MultiHeadAttention, tuple[torch.Tensor, ...]]:
    config = AttentionConfig(**fields)
    shapes = (q_len, config.embed_dim), (k_len, config.key_dim), (k_len, config.value_dim)
    return MultiHeadAttention(**fields).eval(), tuple(torch.randn(batch, *shape) for shape in shapes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fields", LAYERS, ids=str)
def test_matmul_flops_are_those_the_counter_sees(fields: dict[str, Any], bias: bool) -> None:
    for batch, q_len, k_len in SIZES:
        layer, inputs = layer_and_inputs(fields | {"bias": bias}, batch, q_len, k_len)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(*inputs)
        assert counter.get_total_flops() > 0
        assert matmul_flops(layer.config, batch, q_len, k_len) == counter.get_total_flops(), (batch, q_len, k_len)


@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_self_attention_through_one_input(projection: str) -> None:
    """One tensor for query, key and value takes the fused product in one piece; it costs the same."""
    layer, (query, *_) = layer_and_inputs({"embed_dim": 33, "num_heads": 3, "projection": projection}, 2, 7, 7)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(query)
    assert matmul_flops(layer.config, 2, 7, 7) == counter.get_total_flops()


def test_the_chunked_kernel_costs_the_same() -> None:
    layer, inputs = layer_and_inputs({"embed_dim": 8, "num_heads": 2, "kernel": "chunked"}, 1, 601, 11)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(*inputs)
    assert matmul_flops(layer.config, 1, 601, 11) == counter.get_total_flops()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fields", LAYERS, ids=str)
def test_parameters_are_counted(fields: dict[str, Any], bias: bool) -> None:
    layer = MultiHeadAttention(**fields, bias=bias)
    assert parameter_count(layer.config) == sum(tensor.numel() for tensor in layer.parameters())


def test_hand_numbers() -> None:
    """E 512, 8 heads, 10 tokens: four E x E projections, then q·k and weights·v; 4 E² + 4 E parameters."""
    config = AttentionConfig()
    assert parameter_count(config) == 4 * 512 * 512 + 4 * 512
    assert matmul_flops(config, 1, 10, 10) == 2 * (4 * 10 * 512 * 512 + 2 * 10 * 10 * 512)
    assert matmul_flops(config, 3, 10, 10) == 3 * matmul_flops(config, 1, 10, 10)
