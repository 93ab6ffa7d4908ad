"""Packed weights, read by the libraries they are packed for, give the output of our module with the same weights.

The references are the real classes: torch.nn.MultiheadAttention and the GPT-2, GPT-NeoX and LLaMA attention of
transformers, with tiny random configurations. The order inside a fused matrix is also checked row by row by hand.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention
from transformers.models.llama.modeling_llama import LlamaAttention

from mha_core import LAYOUTS, AttentionConfig, AttentionWeights, MhaError, MultiHeadAttention
from tests.core.strategies import TOLERANCE, build, random_weights, rng

SIZES = {"one each": {}, "grouped": {"num_kv_heads": 2}, "multi-query": {"num_kv_heads": 1}}
CLOSE = TOLERANCE[torch.float64]
FLOAT32_SOFTMAX = {"rtol": 1e-6, "atol": 1e-6}  # GPT-NeoX and LLaMA take the softmax in float32, whatever the input


def causal(length: int) -> tuple[Tensor, Tensor]:
    """The causal mask as ours (True = may attend) and as an additive (1, 1, S, S)."""
    allowed = torch.ones(length, length).tril().bool()
    return allowed, torch.zeros(1, 1, length, length).double().masked_fill(~allowed, -torch.inf)


def no_rotation(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position 0: the rotation that changes nothing."""
    return torch.ones(1, length, width).double(), torch.zeros(1, length, width).double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(name: str, sizes: dict[str, int], bias: bool) -> None:
    config = AttentionConfig(20, 4, bias=bias, **sizes)
    weights = random_weights(config, 1)
    state = LAYOUTS[name].pack(weights, config)
    assert all(isinstance(tensor, Tensor) for tensor in state.values())
    back = LAYOUTS[name].unpack(state, config)
    for f in fields(AttentionWeights):
        before, after = getattr(weights, f.name), getattr(back, f.name)
        assert (before is None and after is None) or torch.equal(before, after), f.name


@pytest.mark.parametrize("name", LAYOUTS)
def test_packing_is_differentiable(name: str) -> None:
    config = AttentionConfig(20, 4, num_kv_heads=2)
    weights = random_weights(config, 2).map(lambda tensor: tensor.requires_grad_())
    sum(tensor.sum() for tensor in LAYOUTS[name].pack(weights, config).values()).backward()
    assert all((getattr(weights, f.name).grad == 1).all() for f in fields(AttentionWeights))


def numbered(rows: int, first: int, width: int) -> Tensor:
    """A matrix whose rows hold first, first + 1, ..."""
    return torch.arange(first, first + rows).float()[:, None].expand(rows, width)


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads", "rows"),
    [
        ("stacked", 2, 2, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]),
        ("interleaved", 2, 2, [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23]),
        ("stacked", 4, 2, [0, 1, 2, 3, 10, 11, 20, 21]),
        ("interleaved", 4, 2, [0, 1, 10, 20, 2, 3, 11, 21]),  # D = 1, two query heads per group
    ],
)
def test_order_of_rows_by_hand(name: str, heads: int, kv_heads: int, rows: list[int]) -> None:
    config = AttentionConfig(4, heads, num_kv_heads=kv_heads, bias=False)
    kv_rows = kv_heads * 4 // heads
    weights = AttentionWeights(numbered(4, 0, 4), numbered(kv_rows, 10, 4), numbered(kv_rows, 20, 4), torch.eye(4))
    assert LAYOUTS[name].pack(weights, config)["qkv_proj.weight"][:, 0].tolist() == rows


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", ["separate", "stacked", "interleaved"])
def test_our_own_state_dicts(name: str, sizes: dict[str, int]) -> None:
    config = AttentionConfig(20, 4, **sizes)
    weights = random_weights(config, 3)
    engine = {} if name == "separate" else {"projection": "fused", "qkv_layout": name}
    module = MultiHeadAttention(20, 4, **sizes, **engine).double()
    module.load_state_dict(LAYOUTS[name].pack(weights, config))  # strict: names and shapes
    query = torch.randn(2, 7, 20, dtype=torch.float64, generator=rng(4))
    torch.testing.assert_close(module(query)[0], build(config, weights)(query)[0], **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
def test_torch_multihead_attention_reads_its_layout(bias: bool) -> None:
    config = AttentionConfig(21, 3, bias=bias)
    weights = random_weights(config, 5)
    module = nn.MultiheadAttention(21, 3, bias=bias, batch_first=True).double().eval()
    module.load_state_dict(LAYOUTS["torch_mha"].pack(weights, config))
    query, memory = (torch.randn(2, length, 21, dtype=torch.float64, generator=rng(6)) for length in (5, 7))
    expected, maps = module(query, memory, memory, average_attn_weights=False)
    output, weights_ = build(config, weights)(query, memory)
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(weights_, maps, **CLOSE)


def test_gpt2_reads_its_layout() -> None:
    config = AttentionConfig(20, 5)
    weights = random_weights(config, 7)
    theirs = GPT2Config(n_embd=20, n_head=5, n_positions=16)
    theirs._attn_implementation = "eager"
    module = GPT2Attention(theirs, layer_idx=0).double().eval()
    module.load_state_dict(LAYOUTS["gpt2"].pack(weights, config))
    x, (allowed, additive) = torch.randn(2, 7, 20, dtype=torch.float64, generator=rng(8)), causal(7)
    expected, maps = module(x, attention_mask=additive)
    output, weights_ = build(config, weights)(x, mask=allowed)
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(weights_, maps, **CLOSE)


def test_gpt_neox_reads_its_layout() -> None:
    config = AttentionConfig(24, 3)
    weights = random_weights(config, 9)
    theirs = GPTNeoXConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, attention_bias=True)
    theirs._attn_implementation = "eager"
    module = GPTNeoXAttention(theirs, layer_idx=0).double().eval()
    module.load_state_dict(LAYOUTS["gpt_neox"].pack(weights, config))
    x, (allowed, additive) = torch.randn(2, 7, 24, dtype=torch.float64, generator=rng(10)), causal(7)
    expected, maps = module(x, attention_mask=additive, position_embeddings=no_rotation(7, module.rotary_ndims))
    output, weights_ = build(config, weights, projection="fused", qkv_layout="interleaved")(x, mask=allowed)
    torch.testing.assert_close(output, expected, **FLOAT32_SOFTMAX)
    torch.testing.assert_close(weights_, maps, **FLOAT32_SOFTMAX)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_llama_reads_its_layout(kv_heads: int, bias: bool) -> None:
    config = AttentionConfig(24, 6, num_kv_heads=kv_heads, bias=bias)
    weights = random_weights(config, 11)
    theirs = LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=kv_heads, attention_bias=bias, head_dim=4
    )
    theirs._attn_implementation = "eager"
    module = LlamaAttention(theirs, layer_idx=0).double().eval()
    module.load_state_dict(LAYOUTS["llama"].pack(weights, config))
    x, (allowed, additive) = torch.randn(2, 7, 24, dtype=torch.float64, generator=rng(12)), causal(7)
    expected, maps = module(x, position_embeddings=no_rotation(7, 4), attention_mask=additive)
    output, weights_ = build(config, weights)(x, mask=allowed)
    torch.testing.assert_close(output, expected, **FLOAT32_SOFTMAX)
    torch.testing.assert_close(weights_, maps, **FLOAT32_SOFTMAX)


@pytest.mark.parametrize("name", LAYOUTS)
def test_missing_names_are_told(name: str) -> None:
    config = AttentionConfig(20, 4)
    state = LAYOUTS[name].pack(random_weights(config, 13), config)
    missing = next(key for key in state if key.endswith("weight"))
    del state[missing]
    with pytest.raises(MhaError, match=rf"layout {name} needs {missing}; there is .*weight") as caught:
        LAYOUTS[name].unpack(state, config)
    assert caught.value.field == "layout"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bias": False}, r"wq is \(20, 20\) with bias; it must be \(20, 20\) without bias"),
        ({"num_kv_heads": 2}, r"wk is \(20, 20\) with bias; it must be \(10, 20\) with bias"),
    ],
)
def test_weights_of_another_size_are_refused(change: dict[str, object], text: str) -> None:
    weights = random_weights(AttentionConfig(20, 4), 14)
    layer = MultiHeadAttention(20, 4, **change)
    with pytest.raises(MhaError, match=text.replace("wq", "(wq|fc_out)")):
        layer.load_weights(weights)
