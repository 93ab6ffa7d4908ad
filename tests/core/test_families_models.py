"""Found layers against the libraries' own modules: the weights read from a small random model, put into our layer, give
what the library's attention module gives.

Rotary positions are switched off by angles of zero, relative biases by a table of zeros: they are not in the weights.
Letters: B batch, S length, E width, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig
from mha_core.layouts import AttentionWeights
from mha_core.sources.families import FoundLayer, find_layers, read_weights

transformers = pytest.importorskip("transformers")
BATCH, LENGTH, MEMORY = 2, 5, 11
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SMALL = {"vocab_size": 13, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager"}
WIDE = {"hidden_size": 21, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 17}
EVEN = {"hidden_size": 84, "num_hidden_layers": 1, "num_attention_heads": 6, "intermediate_size": 17}
GROUPED = {**EVEN, "hidden_size": 66, "num_key_value_heads": 2, "head_dim": 14}


def build(kind: str, **settings: Any) -> nn.Module:
    """A transformers model with every parameter drawn anew, biases and norms too."""
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **settings})
    model: nn.Module = getattr(transformers, f"{kind}Model")(config)
    return drawn(model)


@torch.no_grad()
def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
        if "relative_attention_bias" in name:
            parameter.zero_()
    return model.eval()


def found(model: nn.Module, *, with_config: bool = True) -> dict[str, FoundLayer]:
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    config = model.config.to_dict() if with_config else None
    return {layer.name: layer for layer in find_layers(shapes, config)}


def read(model: nn.Module, layer: FoundLayer, **counts: int) -> tuple[AttentionConfig, AttentionWeights]:
    return read_weights(layer, model.state_dict().__getitem__, **counts)


def numbers(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ours(model: nn.Module, layer: FoundLayer, x: Tensor, memory: Tensor | None = None, **changes: Any) -> Tensor:
    """What our layer gives with the weights that were read."""
    config, weights = read(model, layer)
    attention = MultiHeadAttention(**{**asdict(config), **changes}, weights=weights)
    output: Tensor = attention(x, memory)[0]
    return output


def straight(rotary_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle 0."""
    return torch.ones(1, LENGTH, rotary_dim), torch.zeros(1, LENGTH, rotary_dim)


def plainly(module: nn.Module, x: Tensor) -> Any:
    return module(x)


def by_bert(module: nn.Module, x: Tensor) -> Any:
    return (module.output.dense(module.self(x)[0]),)


def by_bloom(module: nn.Module, x: Tensor) -> Any:
    return module(x, torch.zeros_like(x), torch.zeros(BATCH * 3, 1, LENGTH), torch.zeros(1, 1, LENGTH, LENGTH))


def turned(rotary_dim: int) -> Callable[[nn.Module, Tensor], Any]:
    return lambda module, x: module(x, attention_mask=None, position_embeddings=straight(rotary_dim))


def by_falcon(module: nn.Module, x: Tensor) -> Any:
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    return module(x, alibi=None, attention_mask=mask, position_embeddings=straight(14))


MODELS: dict[str, tuple[str, dict[str, Any], str, str, tuple[int, int, int], Any]] = {
    # kind, settings, layer, family, (H, Hkv, D), how its module is called
    "bert": ("Bert", WIDE, "encoder.layer.0.attention", "bert", (3, 3, 7), by_bert),
    "roberta": ("Roberta", WIDE, "encoder.layer.0.attention", "bert", (3, 3, 7), by_bert),
    "electra": ("Electra", {**WIDE, "embedding_size": 5}, "encoder.layer.0.attention", "bert", (3, 3, 7), by_bert),
    "distilbert": (
        "DistilBert",
        {"dim": 21, "n_layers": 1, "n_heads": 3, "hidden_dim": 17},
        "transformer.layer.0.attention",
        "distilbert",
        (3, 3, 7),
        plainly,
    ),
    "vit": ("ViT", {**WIDE, "image_size": 4, "patch_size": 2}, "layers.0.attention", "vit", (3, 3, 7), plainly),
    "gpt2": ("GPT2", {"n_embd": 21, "n_layer": 1, "n_head": 3}, "h.0.attn", "gpt2", (3, 3, 7), plainly),
    "bloom": (
        "Bloom",
        {"hidden_size": 21, "n_layer": 1, "n_head": 3, "hidden_dropout": 0.0},
        "h.0.self_attention",
        "bloom",
        (3, 3, 7),
        by_bloom,
    ),
    "gpt_neox": ("GPTNeoX", EVEN, "layers.0.attention", "gpt_neox", (6, 6, 14), turned(14)),
    "falcon": (
        "Falcon",
        {**EVEN, "multi_query": True, "new_decoder_architecture": False},
        "h.0.self_attention",
        "falcon",
        (6, 1, 14),
        by_falcon,
    ),
    "falcon_per_head": (
        "Falcon",
        {**EVEN, "multi_query": False, "new_decoder_architecture": False},
        "h.0.self_attention",
        "falcon",
        (6, 6, 14),
        by_falcon,
    ),
    "llama": ("Llama", GROUPED, "layers.0.self_attn", "llama", (6, 2, 14), turned(14)),
    "mistral": ("Mistral", GROUPED, "layers.0.self_attn", "llama", (6, 2, 14), turned(14)),
    "qwen2": ("Qwen2", {**EVEN, "num_key_value_heads": 3}, "layers.0.self_attn", "llama", (6, 3, 14), turned(14)),
    "phi3": ("Phi3", {**EVEN, "num_key_value_heads": 2}, "layers.0.self_attn", "phi3", (6, 2, 14), turned(14)),
    "opt": (
        "OPT",
        {"hidden_size": 21, "num_hidden_layers": 1, "num_attention_heads": 3, "ffn_dim": 17, "word_embed_proj_dim": 21},
        "decoder.layers.0.self_attn",
        "opt",
        (3, 3, 7),
        plainly,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_our_layer_gives_what_the_librarys_module_gives(name: str) -> None:
    kind, settings, path, family, heads, call = MODELS[name]
    model = build(kind, **settings)
    layer = found(model)[path]
    assert (layer.family, layer.kind) == (family, "self")
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim) == heads
    x = numbers(BATCH, LENGTH, layer.embed_dim)
    with torch.no_grad():
        expected = call(model.get_submodule(path), x)[0]
    torch.testing.assert_close(ours(model, layer, x), expected, **TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_config_counts_are_not_invented(name: str) -> None:
    kind, settings, path, family, heads, _ = MODELS[name]
    layer = found(build(kind, **settings), with_config=False)[path]
    assert (layer.family, layer.num_heads, layer.head_dim) == (family, None, None)
    assert heads[0] in layer.possible_heads
    assert any("not in the weights" in sentence for sentence in layer.evidence)
    assert (layer.q_rows, layer.kv_rows) == (heads[0] * heads[2], heads[1] * heads[2])


def test_grouped_falcon_is_cut_group_by_group() -> None:
    """The module repeats k and v for every q head, and then asks for H of them: its own slices are compared."""
    model = build("Falcon", **EVEN, num_kv_heads=3, new_decoder_architecture=True)
    layer = found(model)["h.0.self_attention"]
    assert (layer.num_heads, layer.num_kv_heads, layer.packing) == (6, 3, "interleaved")
    attention = model.get_submodule(layer.name)
    x = numbers(BATCH, LENGTH, 84)
    _, weights = read(model, layer)
    q, k, v = attention._split_heads(attention.query_key_value(x))  # (B, S, H, D), k and v repeated within a group
    torch.testing.assert_close((x @ weights.q.T).view(BATCH, LENGTH, 6, 14), q, **TOLERANCE)
    for matrix, expected in ((weights.k, k), (weights.v, v)):
        own = (x @ matrix.T).view(BATCH, LENGTH, 3, 14).repeat_interleave(2, dim=2)
        torch.testing.assert_close(own, expected, **TOLERANCE)


def test_qwen3_says_its_head_dim_by_q_norm() -> None:
    model = build("Qwen3", **GROUPED)
    layer = found(model, with_config=False)["layers.0.self_attn"]
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.embed_dim) == (6, 2, 14, 66)
    assert any("q_norm and k_norm" in sentence for sentence in layer.evidence)
    _, weights = read(model, layer)
    x, attention = numbers(BATCH, LENGTH, 66), model.get_submodule(layer.name)
    for name in "qkv":
        torch.testing.assert_close(x @ getattr(weights, name).T, attention.get_submodule(f"{name}_proj")(x))


T5 = {"d_model": 23, "d_kv": 7, "num_heads": 5, "num_layers": 2, "d_ff": 17, "num_decoder_layers": 2}


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_t5_has_its_own_width_and_says_its_heads_by_the_relative_bias(stack: str) -> None:
    model = build("T5", **T5)
    layers = found(model, with_config=False)
    assert len(layers) == 6
    for layer in layers.values():
        assert (layer.num_heads, layer.head_dim, layer.embed_dim, layer.q_rows) == (5, 7, 23, 35)
    name = f"{stack}.block.1.layer.0.SelfAttention"  # block 1 has no table of its own
    x = numbers(BATCH, LENGTH, 23)
    with torch.no_grad():
        zeros = torch.zeros(1, 5, LENGTH, LENGTH)
        expected = model.get_submodule(name)(x, position_bias=zeros)[0]
    torch.testing.assert_close(ours(model, layers[name], x, scale=1.0), expected, **TOLERANCE)


def test_t5_attends_across() -> None:
    model = build("T5", **T5)
    layer = found(model)["decoder.block.0.layer.1.EncDecAttention"]
    assert layer.kind == "cross"
    x, memory = numbers(BATCH, LENGTH, 23), numbers(BATCH, MEMORY, 23, seed=6)
    with torch.no_grad():
        zeros = torch.zeros(1, 5, LENGTH, MEMORY)
        expected = model.get_submodule(layer.name)(x, key_value_states=memory, position_bias=zeros)[0]
    torch.testing.assert_close(ours(model, layer, x, memory, scale=1.0), expected, **TOLERANCE)


def test_whisper_has_two_head_counts_and_no_bias_on_k() -> None:
    sizes = {"d_model": 30, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 17, "decoder_ffn_dim": 17}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 5}
    model = build("Whisper", **sizes, **heads, num_mel_bins=7, decoder_start_token_id=1)
    layers = found(model)
    kinds = {layer.name: (layer.family, layer.kind, layer.num_heads) for layer in layers.values()}
    assert kinds == {
        "encoder.layers.0.self_attn": ("whisper", "self", 3),
        "decoder.layers.0.self_attn": ("whisper", "self", 5),
        "decoder.layers.0.encoder_attn": ("whisper", "cross", 5),
    }
    x, memory = numbers(BATCH, LENGTH, 30), numbers(BATCH, MEMORY, 30, seed=6)
    for name, layer in layers.items():
        other = memory if layer.kind == "cross" else None
        with torch.no_grad():
            expected = model.get_submodule(name)(x, key_value_states=other)[0]
        torch.testing.assert_close(ours(model, layer, x, other), expected, **TOLERANCE)
        assert not read(model, layer)[1].k_bias.any()


def test_clip_takes_the_nested_config_of_its_tower() -> None:
    text = {**SMALL, **WIDE}
    vision = {**WIDE, "hidden_size": 55, "num_attention_heads": 5, "image_size": 4, "patch_size": 2}
    model = build("CLIP", text_config=text, vision_config={**vision, "attn_implementation": "eager"})
    layers = found(model)
    assert [(layer.family, layer.num_heads, layer.head_dim) for layer in layers.values()] == [
        ("clip", 3, 7),
        ("clip", 5, 11),
    ]
    layer = layers["vision_model.encoder.layers.0.self_attn"]
    x = numbers(BATCH, LENGTH, 55)
    with torch.no_grad():
        expected = model.get_submodule(layer.name)(x)[0]
    torch.testing.assert_close(ours(model, layer, x), expected, **TOLERANCE)


def test_gpt2_attends_across_with_one_matrix_for_k_and_v() -> None:
    model = build("GPT2", n_embd=21, n_layer=1, n_head=3, add_cross_attention=True)
    layer = found(model)["h.0.crossattention"]
    assert (layer.family, layer.kind, layer.packing, layer.transposed) == ("gpt2", "cross", "kv_stacked", True)
    x, memory = numbers(BATCH, LENGTH, 21), numbers(BATCH, MEMORY, 21, seed=6)
    with torch.no_grad():
        expected = model.get_submodule(layer.name)(x, encoder_hidden_states=memory)[0]
    torch.testing.assert_close(ours(model, layer, x, memory), expected, **TOLERANCE)


def test_bert_attends_across() -> None:
    model = build("Bert", **WIDE, is_decoder=True, add_cross_attention=True)
    layers = found(model)
    assert {layer.kind for layer in layers.values()} == {"self", "cross"}
    layer = layers["encoder.layer.0.crossattention"]
    x, memory = numbers(BATCH, LENGTH, 21), numbers(BATCH, MEMORY, 21, seed=6)
    with torch.no_grad():
        module = model.get_submodule(layer.name)
        expected = module.output.dense(module.self(x, encoder_hidden_states=memory)[0])
    torch.testing.assert_close(ours(model, layer, x, memory), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("kdim", "vdim", "bias"), [(None, None, True), (11, 13, True), (11, 13, False), (None, None, False)]
)
def test_torch(kdim: int | None, vdim: int | None, bias: bool) -> None:
    module = drawn(nn.MultiheadAttention(21, 3, kdim=kdim, vdim=vdim, bias=bias, batch_first=True))
    (layer,) = find_layers({name: tuple(tensor.shape) for name, tensor in module.state_dict().items()})
    assert (layer.name, layer.family, layer.num_heads) == ("", "torch", None)
    assert (layer.key_dim, layer.value_dim) == (kdim or 21, vdim or 21)
    config, weights = read(module, layer, num_heads=3)
    x, key, value = numbers(BATCH, LENGTH, 21), numbers(BATCH, MEMORY, kdim or 21), numbers(BATCH, MEMORY, vdim or 21)
    with torch.no_grad():
        expected = module(x, key, value)[0]
    torch.testing.assert_close(MultiHeadAttention.from_config(config, weights)(x, key, value)[0], expected, **TOLERANCE)


def test_torch_decoder_layer_has_one_of_each_kind() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(21, 3, 17), 11)
    layers = find_layers({name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}, {"nhead": 3})
    names = [(layer.name, layer.kind) for layer in layers]
    assert names[:2] == [("layers.0.multihead_attn", "cross"), ("layers.0.self_attn", "self")]
    assert [name for name, kind in names if kind == "self"] == [f"layers.{n}.self_attn" for n in range(11)]
    assert {layer.num_heads for layer in layers} == {3}
