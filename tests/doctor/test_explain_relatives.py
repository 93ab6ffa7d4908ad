"""Relatives of the known texts: padding masks as pair masks, rotary halves, caches, misspelled arguments, kernels.

Where torch, einops or transformers can raise the error here, it is raised; the others are quoted as they print it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from mha_core.doctor.explain import explain

B, H, S, D = 3, 4, 7, 16


def raised(call: Callable[[], Any]) -> str:
    """Run what has to fail; the text as Python prints it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- any error, its text is what is tested
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def heads(count: int = H, batch: int = B, width: int = D) -> Tensor:
    return torch.zeros(batch, count, S, width)


def mha(**keywords: Any) -> Any:
    x = torch.zeros(B, S, H * D)
    return nn.MultiheadAttention(H * D, H, batch_first=True)(x, x, x, **keywords)


def flex(q: Tensor, k: Tensor, **keywords: Any) -> Any:
    return flex_attention(q, k, k, **keywords)


SCORES = torch.zeros(B, H, S, S)
PADDING = torch.zeros(B, S, dtype=torch.bool)
TOKENS = torch.zeros(B, S, H * D)
REAL: list[tuple[str, str, Callable[[], Any]]] = [
    ("mask_shape", "a mask (B, Sk)", lambda: SCORES.masked_fill(PADDING, 0.0)),
    ("mask_shape", "batch of 3", lambda: SCORES.masked_fill(PADDING, 0.0)),
    ("mask_shape", "batch of 3", lambda: SCORES + PADDING),
    ("mask_shape", "[:, None, None, :]", lambda: F.scaled_dot_product_attention(heads(), heads(), heads(), PADDING)),
    ("mask_shape", "key_padding_mask=", lambda: mha(attn_mask=PADDING)),
    ("mask_shape", "key_padding_mask=", lambda: mha(attn_mask=PADDING[:, None])),
    ("position", "16 channels", lambda: heads() * torch.zeros(S, D // 2)),
    ("amp", "int64", lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.ones(B, S, 8).long()] * 3)),
    ("head_split", "letter h", lambda: torch.einsum("bqd,bkd->bhqk", TOKENS, TOKENS)),
    ("head_split", "letter q", lambda: torch.einsum("bhqd,bhkd->bhqq", heads(), heads())),
    ("head_split", "operands", lambda: torch.einsum("bhqd,bhkd->bhqk", heads())),
    ("head_split", "operands", lambda: torch.einsum("bhqd->bhqd", heads(), heads())),
    ("gqa", "3 = 1 x 2 + 1", lambda: flex(heads(3), heads(2))),
    ("gqa", "enable_gqa=True", lambda: flex(heads(4), heads(2))),
    ("gqa", "3 = 1 x 2 + 1", lambda: flex(heads(3), heads(2), enable_gqa=True)),
    ("cross_dims", "16", lambda: flex(heads(), heads(width=8))),
    ("cross_dims", "batch", lambda: flex(heads(), heads(batch=5))),
    ("head_split", "(B, H, S, D)", lambda: flex(TOKENS, TOKENS)),
    ("batch_first", "batch_first", lambda: nn.MultiheadAttention(8, 2, batch_firts=True)),  # type: ignore[call-arg]
    ("dropout", "dropout", lambda: nn.MultiheadAttention(8, 2, droput=0.1)),  # type: ignore[call-arg]
    ("divisibility", "num_heads", lambda: nn.MultiheadAttention(8, n_heads=2)),  # type: ignore[call-arg]
    ("divisibility", "embed_dim", lambda: nn.MultiheadAttention(embed_size=8, num_heads=2)),  # type: ignore[call-arg]
    ("mask_shape", "key_padding_mask", lambda: mha(key_paddng_mask=PADDING)),
    ("mask_shape", "True = may NOT attend", lambda: mha(mask=PADDING)),
    ("dropout", "dropout_p", lambda: F.scaled_dot_product_attention(heads(), heads(), heads(), dropout=0.1)),
    ("head_split", "twice", lambda: heads().permute(0, 1, 1, 3)),
    ("mask_dtype", "~", lambda: -PADDING),
    ("mask_dtype", "bool", lambda: ~PADDING.float()),
    (
        "mask_dtype",
        "tensor",
        lambda: F.scaled_dot_product_attention(heads(), heads(), heads(), attn_mask=[1]),  # type: ignore[arg-type]
    ),
    ("cross_dims", "memory", lambda: nn.TransformerDecoderLayer(8, 2)(torch.ones(S, B, 8))),
    ("cross_dims", "tgt", lambda: nn.Transformer(8, 2, 1, 1)(torch.ones(S, B, 8))),
    ("head_split", "h=", lambda: einops.repeat(TOKENS, "b s e -> b h s e")),
    ("head_split", "heads", lambda: einops.rearrange(TOKENS, "b s (h d) -> b h s d", heads=4)),
    ("head_split", "parentheses", lambda: einops.rearrange(TOKENS, "b s (h d -> b h s d", h=4)),
    ("head_split", "h", lambda: einops.einsum(TOKENS, TOKENS, "b q d, b k d -> b h q k")),
]


@pytest.mark.parametrize(("kind", "word", "call"), REAL, ids=range(len(REAL)))
def test_raised_here(kind: str, word: str, call: Callable[[], Any]) -> None:
    text = raised(call)
    found = explain(text)
    assert found.known, text
    assert found.kind == kind, text
    assert word in " ".join((found.explanation, *found.try_)), found


PRINTED = [
    (
        "mask_shape",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (128) at non-singleton dimension 2",
        "[:, None, None, :]",
    ),
    (
        "mask_shape",
        "RuntimeError: The shape of the 2D attn_mask is torch.Size([32, 128]), but should be (128, 128).",
        "32 is the batch",
    ),
    (
        "head_split",
        "ValueError: `attn_output` should be of size (2, 32, 7, 128), but is torch.Size([2, 7, 32, 128])",
        "xes 1 and 2 are exchanged",
    ),
    (
        "gqa",
        "ValueError: `attn_output` should be of size (2, 32, 7, 128), but is torch.Size([2, 8, 7, 128])",
        "repeat_kv",
    ),
    (
        "causal",
        "ValueError: too many values to unpack (expected 2)\n    for i, (k, v) in enumerate(past_key_values):",
        "past_key_values",
    ),
    (
        "batch_first",
        "AssertionError: expecting key_padding_mask shape of (4, 20), but got torch.Size([20, 4])",
        "mask.t()",
    ),
    (
        "cross_dims",
        "AssertionError: expecting key_padding_mask shape of (4, 20), but got torch.Size([4, 18])",
        "source",
    ),
    ("cross_dims", "RuntimeError: mat1 dim 1 must match mat2 dim 0", "in_features"),
    ("divisibility", "RuntimeError: head_size should be a multiple of 8", "multiple of 8"),
    ("causal", "AttributeError: 'tuple' object has no attribute 'get_seq_length'", "DynamicCache"),
    ("causal", "AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'", "get_seq_length()"),
    ("causal", "AttributeError: 'DynamicCache' object has no attribute 'get_usable_length'", "get_seq_length()"),
    ("causal", "AttributeError: 'DynamicCache' object has no attribute 'key_cache'", "layers[i].keys"),
    ("causal", "AttributeError: type object 'DynamicCache' has no attribute 'from_legacy_cache'", "tuple"),
    ("causal", "TypeError: 'DynamicCache' object is not subscriptable", "layers[i].keys"),
    ("causal", "TypeError: Cache.update() missing 1 required positional argument: 'layer_idx'", "layer_idx"),
    (
        "amp",
        "AttributeError: module 'torch.nn.functional' has no attribute 'scaled_dot_product_attention'",
        "2.0",
    ),
    ("head_split", "RuntimeError: number of dims don't match in permute", "x.view(B, S, H, D)"),
    ("mask_shape", "RuntimeError: p.attn_bias_ptr is not correctly aligned", "multiple of 8"),
    (
        "mask_shape",
        "RuntimeError: attn_bias is not correctly aligned (strideM). attn_bias.stride(2) = 77, and should be a "
        "multiple of 8.",
        "77",
    ),
    (
        "head_split",
        "ValueError: Query/Key/Value should all have BMHK or BMK shape.\n  query.shape: torch.Size([2, 8, 64])\n"
        "  key.shape  : torch.Size([2, 10, 8, 64])\n  value.shape: torch.Size([2, 10, 8, 64])",
        "3, 4 and 4 axes",
    ),
    (
        "position",
        "StrictDataclassClassValidationError: Class validation error for validator 'validate_rope':\n    ValueError: "
        "RoPE requires an even rotary dimension, but got `head_dim`=7 with `partial_rotary_factor`=1.0 for "
        "`full_attention`.",
        "head_dim 7",
    ),
    (
        "amp",
        "You are attempting to use Flash Attention 2.0 with a model not initialized on GPU. Make sure to move the "
        "model to GPU after initializing it on CPU with `model.to('cuda')`.",
        "model.to('cuda')",
    ),
    ("batch_first", "TypeError: __init__() got an unexpected keyword argument 'batch_firsst'", "batch_first"),
    (
        "weights_reading",
        "TypeError: LlamaForCausalLM.__init__() got an unexpected keyword argument 'attn_implementation'",
        "from_pretrained",
    ),
    (
        "amp",
        "TypeError: LlamaForCausalLM.__init__() got an unexpected keyword argument 'use_flash_attention_2'",
        "attn_implementation='flash_attention_2'",
    ),
    (
        "amp",
        "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'",
        "attn_implementation",
    ),
    ("amp", "AttributeError: 'LlamaModel' object has no attribute 'to_bettertransformer'", "sdpa"),
    (
        "mask_dtype",
        "NotImplementedError: \"bitwise_and_cpu\" not implemented for 'Float'",
        ".bool()",
    ),
    (
        "divisibility",
        "ValueError: Head size 60 is not supported by PagedAttention. Supported head sizes are: [64, 80, 96, 128].",
        "60",
    ),
    (
        "position",
        "ValueError: User-specified max_model_len (32768) is greater than the derived max_model_len "
        "(max_position_embeddings=4096.0 or model_max_length=None in model's config.json).",
        "28672",
    ),
    (
        "memory",
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored "
        "in KV cache (12000). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        "max_model_len=12000",
    ),
    (
        "cross_dims",
        "RuntimeError: k must have shape (batch_size, seqlen_k, num_heads_k, head_size_og)",
        "(B, S, H, D)",
    ),
    ("amp", "RuntimeError: query and key must have the same dtype", "one dtype"),
    ("head_split", "RuntimeError: Input tensor must have contiguous last dimension", "contiguous()"),
    (
        "position",
        "KeyError: \"Missing required keys in `rope_parameters` for 'rope_type'='linear': {'factor'}\"",
        "factor",
    ),
    ("cross_dims", "ValueError: You have to specify either decoder_input_ids or decoder_inputs_embeds", "decoder"),
    (
        "cross_dims",
        "ValueError: If `encoder_hidden_states` are passed, BertLayer has to be instantiated with cross-attention "
        "layers by setting `config.add_cross_attention=True`",
        "add_cross_attention=True",
    ),
]


@pytest.mark.parametrize(("kind", "text", "word"), PRINTED, ids=range(len(PRINTED)))
def test_as_printed(kind: str, text: str, word: str) -> None:
    found = explain(text)
    assert found.known
    assert found.kind == kind
    assert word in " ".join((found.explanation, *found.try_)), found


def test_kv_heads_that_do_not_divide_are_among_the_readings() -> None:
    found = explain(raised(lambda: heads(4) @ heads(3).transpose(-2, -1)))
    assert "3 KV heads do not divide 4 heads" in found.explanation
    assert explain(f"{raised(lambda: heads(4) @ heads(3).mT)} key_states = repeat_kv(key, n_rep)").kind == "gqa"


def test_the_known_batch_decides_for_the_padding_mask() -> None:
    text = raised(lambda: SCORES.masked_fill(PADDING, 0.0))
    assert "batch of 3" in explain(text, {"batch": 3, "q_len": 7}).explanation
    found = explain(raised(lambda: torch.zeros(2, 4, 7, 7) + torch.zeros(3, 7)), {"batch": 2, "q_len": 7})
    assert "it was built for another length" in found.explanation.partition("It also fits")[0]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: operands could not be broadcast together with shapes (3,4) (5,)",
        "ValueError: operands could not be broadcast together with shapes (480,640,3) (480,640) ",
        "AttributeError: 'tuple' object has no attribute 'get_price'",
        "TypeError: __init__() got an unexpected keyword argument 'colour'",
        "TypeError: read_csv() got an unexpected keyword argument 'index_cols'",
        "TypeError: Button.__init__() got an unexpected keyword argument 'heads'",
        "ValueError: too many values to unpack (expected 2)\n    for key, value in pairs.lines():\n" + "x = 1\n" * 20,
        "ImportError: cannot import name 'url_quote' from 'werkzeug.urls'",
        "AttributeError: module 'torch.nn.functional' has no attribute 'swoosh'",
        "TypeError: Store.update() missing 1 required positional argument: 'item'",
        "ValueError: buffer size should be a multiple of 8",
        "RuntimeError: k must have shape (3, 2)",
        "TypeError: 'Cache' object is not subscriptable",
        "AttributeError: 'Cache' object has no attribute 'seen'",
    ],
)
def test_what_does_not_speak_of_attention_stays_unknown(text: str) -> None:
    assert not explain(text).known


def test_one_change_is_told_once() -> None:
    found = explain(
        "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n"
        "     query       : shape=(2, 1024, 8, 40) (torch.float32)\n     p           : 0.0\n"
        "`flshattF` is not supported because:\n    device=cpu (supported: {'cuda'})"
    )
    assert len(set(found.try_)) == len(found.try_) > 0
