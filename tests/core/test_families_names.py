"""Names and shapes written by hand: every known spelling, what is no matrix of attention, what does not fit.

Letters: E width, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_core.errors import MhaError
from mha_core.sources.families import FAMILIES, FoundLayer, find_layers, read_weights

E, ROWS, KV = 21, 30, 15  # H*D and Hkv*D of 6 and 3 heads of 5 channels
Shapes = dict[str, tuple[int, ...]]


def four(names: str, q: tuple[int, int] = (E, E), kv: tuple[int, int] = (E, E), *, bias: str = "") -> Shapes:
    """Shapes of q, k, v and the output under four names; `bias` names those that have one, as "qv"."""
    shapes = dict(zip(names.split(), (q, kv, kv, q[::-1]), strict=True))
    marked = dict(zip("qkvo", names.split(), strict=True))
    biases = {f"{marked[mark]}.bias": shapes[marked[mark]][:1] for mark in bias}
    return {f"{name}.weight": shape for name, shape in shapes.items()} | biases


def under(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def only(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None) -> FoundLayer:
    (layer,) = find_layers(shapes, config)
    return layer


PROJ = "q_proj k_proj v_proj"
ROLES = ("q", "k", "v", "out")
SEPARATE = {  # names under the layer's prefix -> prefix, family
    "self.query self.key self.value output.dense": ("bert.encoder.layer.1.attention", "bert"),
    "attention.query attention.key attention.value output.dense": ("vit.encoder.layer.1.attention", "vit"),
    "query key value dense": ("encoder.albert_layers.0.attention", "albert"),
    "q_lin k_lin v_lin out_lin": ("transformer.layer.1.attention", "distilbert"),
    f"{PROJ} o_proj": ("model.layers.1.self_attn", "llama"),
    f"{PROJ} out_proj": ("model.decoder.layers.1.self_attn", "opt"),
    f"{PROJ} dense": ("model.layers.1.self_attn", "phi"),
    "q k v o": ("encoder.block.1.layer.0.SelfAttention", "t5"),
    "q k v proj": ("blocks.1.attn", "timm"),
    "to_q to_k to_v to_out": ("attn_layers.layers.0.1", "x_transformers"),
    "to_q to_k to_v to_out.0": ("down.0.attn1", "x_transformers"),
    "wq wk wv wo": ("layers.1.attention", "meta_llama"),
    "wq wk wv fc_out": ("attn", "mha_lab"),
    "linears.0 linears.1 linears.2 linears.3": ("encoder.layers.1.self_attn", "annotated"),
    "attn_q attn_k attn_v attn_output": ("blk.1", "gguf"),
    "w_q w_k w_v w_o": ("layers.1.attention", "generic"),
    "w_qs w_ks w_vs fc": ("slf_attn", "generic"),
    "fc_q fc_k fc_v fc_o": ("attn", "generic"),
    "W_query W_key W_value out_proj": ("trf_blocks.1.att", "generic"),
    "toqueries tokeys tovalues unifyheads": ("tblocks.1.attention", "generic"),
    "q_linear k_linear v_linear out": ("layers.1.attn_1", "generic"),
    "query_proj key_proj value_proj out_proj": ("attn", "generic"),
    "query key value out": ("encoder.blocks.1.attn", "generic"),
    "queryProj keyProj valueProj outProj": ("attn", "generic"),
}


@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.", "bert."])
@pytest.mark.parametrize("names", SEPARATE)
def test_separate_names(names: str, wrapper: str) -> None:
    prefix, family = SEPARATE[names]
    layer = only(under(f"{wrapper}{prefix}.", four(names, (ROWS, E), (KV, E), bias="qkvo")), {"num_heads": 6})
    stem = ".attn" if family == "gguf" else ""
    assert (layer.name, layer.family, layer.packing) == (f"{wrapper}{prefix}{stem}", family, "separate")
    paths = {role: f"{wrapper}{prefix}.{name}.weight" for role, name in zip(ROLES, names.split(), strict=True)}
    assert {role: layer.tensors[role] for role in paths} == paths
    assert {role for role in layer.tensors if role.endswith("_bias")} == {f"{role}_bias" for role in paths}
    assert (layer.q_rows, layer.kv_rows, layer.embed_dim) == (ROWS, KV, E)
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim) == (6, 3, 5)
    assert layer.kind == ("unknown" if prefix == "attn_layers.layers.0.1" else "self")
    assert family in FAMILIES


FUSED = {  # (fused, out) -> prefix, family, packing, transposed
    ("in_proj_", "out_proj."): ("layers.1.self_attn.", "torch", "stacked", False),
    ("qkv.", "proj."): ("blocks.1.attn.", "timm", "stacked", False),
    ("to_qkv.", "to_out.0."): ("layers.1.0.fn.", "x_transformers", "stacked", False),
    ("c_attn.", "c_proj."): ("transformer.h.1.attn.", "nanogpt", "stacked", False),
    ("query_key_value.", "dense."): ("gpt_neox.layers.1.attention.", "gpt_neox", "interleaved", False),
    ("qkv_proj.", "o_proj."): ("model.layers.1.self_attn.", "phi3", "stacked", False),
    ("qkv_proj.", "fc_out."): ("attn.", "mha_lab", "stacked", False),
    ("Wqkv.", "out_proj."): ("blocks.1.attn.", "mpt", "stacked", False),
    ("linear_qkv.", "linear_proj."): ("decoder.layers.1.self_attention.", "megatron", "interleaved", False),
    ("attn_qkv.", "attn_output."): ("blk.1.", "gguf", "stacked", False),
    ("qkv_linear.", "out."): ("layers.1.attn.", "generic", "stacked", False),
}


@pytest.mark.parametrize("names", FUSED)
def test_fused_names(names: tuple[str, str]) -> None:
    prefix, family, packing, transposed = FUSED[names]
    fused, out = names
    shapes = {f"{fused}weight": (63, E), f"{fused}bias": (63,), f"{out}weight": (E, E), f"{out}bias": (E,)}
    layer = only(under(prefix, shapes), {"n_head": 3})
    assert (layer.family, layer.packing, layer.transposed, layer.kind) == (family, packing, transposed, "self")
    assert (layer.q_rows, layer.kv_rows, layer.num_heads, layer.head_dim) == (E, E, 3, 7)
    assert list(layer.tensors) == ["qkv", "out", "qkv_bias", "out_bias"]


def gpt2(width: int = E, *, linear: bool = False) -> Shapes:
    fused = (3 * width, width) if linear else (width, 3 * width)
    shapes: Shapes = {"c_attn.weight": fused, "c_attn.bias": (3 * width,), "c_proj.weight": (width, width)}
    shapes |= {"c_proj.bias": (width,), "bias": (1, 1, 11, 11), "masked_bias": ()}
    return under("h.0.attn.", shapes) | {"h.0.mlp.c_proj.weight": (4 * width, width)}


def test_gpt2_and_nanogpt_are_told_apart_by_shape() -> None:
    assert [(x.family, x.transposed) for x in (only(gpt2()), only(gpt2(linear=True)))] == [
        ("gpt2", True),
        ("nanogpt", False),
    ]


def test_gpt2_is_turned_without_biases_too() -> None:
    shapes = {name: shape for name, shape in gpt2().items() if not name.endswith("bias")}
    layer = only(shapes, {"n_head": 3})
    assert (layer.family, layer.transposed, layer.q_rows, layer.head_dim) == ("gpt2", True, E, 7)


def test_mask_buffers_are_no_biases() -> None:
    """Also where the buffer has the name and nearly the place of a bias."""
    layer = only(gpt2())
    assert set(layer.tensors.values()) == {f"h.0.attn.c_{n}.{w}" for n in ("attn", "proj") for w in ("weight", "bias")}
    shapes = under("attn.", four(f"{PROJ} o_proj")) | {"attn.q_proj.bias": (1, 1, 7, 7)}
    shapes |= {"attn.mask": (7, 7), "attn.tril": (7, 7), "attn.out": (7, 7), "embeddings.position_ids": (1, 7)}
    layer = only(shapes)
    assert set(layer.tensors) == {"q", "k", "v", "out"}
    assert layer.tensors["out"] == "attn.o_proj.weight"


def test_adapters_and_quantised_matrices_are_left_out() -> None:
    names = f"{PROJ} o_proj"
    lora = {f"attn.{name}.lora_{side}.default.weight": (2, E) for name in names.split() for side in "AB"}
    packed: Shapes = {
        f"attn.{name}.{part}": (3, 4) for name in names.split() for part in ("qweight", "scales", "qzeros")
    }
    assert find_layers(lora | packed) == ()
    assert find_layers({"q_proj.lora_A": (2, E), "k_proj.lora_A": (2, E), "v_proj.lora_A": (2, E)}) == ()
    float8 = under("attn.", four(names)) | {f"attn.{name}.weight_scale": (1,) for name in names.split()}
    assert find_layers(float8) == ()
    adapted = {name.replace(".weight", ".base_layer.weight"): shape for name, shape in four(names).items()}
    layer = only(under("attn.", adapted) | lora)
    assert layer.tensors["q"] == "attn.q_proj.base_layer.weight"


def test_layers_come_in_natural_order() -> None:
    numbers = list(range(13))
    random.Random(3).shuffle(numbers)
    shapes: Shapes = {}
    for number in numbers:
        shapes |= under(f"layers.{number}.self_attn.", four(f"{PROJ} o_proj"))
    assert [layer.name for layer in find_layers(shapes)] == [f"layers.{n}.self_attn" for n in range(13)]


@pytest.mark.parametrize(
    "prefix",
    ["l.0.crossattention", "l.0.encoder_attn", "l.0.EncDecAttention", "l.0.cross_attn", "l.0.attn2", "l.0.src_attn"],
)
def test_cross_attention_by_name(prefix: str) -> None:
    assert only(under(f"{prefix}.", four(f"{PROJ} out_proj"))).kind == "cross"


def test_kind_where_the_name_is_silent() -> None:
    assert only(under("mid.0.", four("to_q to_k to_v to_out.0"))).kind == "unknown"
    across = only(under("mid.0.attn.", four("to_q to_k to_v to_out.0", (E, E), (E, 13))))
    assert (across.kind, across.key_dim, across.value_dim) == ("cross", 13, 13)
    assert only(under("cross_encoder.layer.0.attention.", four(f"{PROJ} o_proj"))).kind == "self"


def test_two_layers_under_one_prefix_have_two_names() -> None:
    shapes = four("to_q to_k to_v to_out.0") | four("add_q_proj add_k_proj add_v_proj to_add_out")
    layers = find_layers(under("blocks.0.attn.", shapes))
    assert len({layer.name for layer in layers}) == len(layers) == 2
    assert {layer.tensors["out"] for layer in layers} == {
        "blocks.0.attn.to_out.0.weight",
        "blocks.0.attn.to_add_out.weight",
    }


def test_four_linear_layers_are_no_attention_by_themselves() -> None:
    assert find_layers(under("mlp.", four("linears.0 linears.1 linears.2 linears.3"))) == ()


def test_compressed_keys_of_deepseek_are_not_taken_for_keys() -> None:
    names = {"q_a_proj": (7, E), "q_b_proj": (ROWS, 7), "kv_a_proj_with_mqa": (8, E), "kv_b_proj": (70, 5)}
    shapes = {f"{name}.weight": shape for name, shape in (names | {"o_proj": (E, ROWS)}).items()}
    assert find_layers(under("layers.0.self_attn.", shapes)) == ()


# Head counts


def test_usual_head_dims_come_first_and_groups_must_divide() -> None:
    assert only(under("attn.", four(f"{PROJ} o_proj", (768, 768), (768, 768)))).possible_heads[:2] == (12, 6)
    grouped = only(under("attn.", four(f"{PROJ} o_proj", (576, 576), (192, 576))))
    assert grouped.possible_heads[0] == 9
    assert set(grouped.possible_heads) == {3 * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192)}


FALCON = {"h.0.self_attention.query_key_value.weight": (4672, 4544), "h.0.self_attention.dense.weight": (4544, 4544)}


def test_falcon_7b_multi_query() -> None:
    """71 heads of 64 channels and one head for k and v; transformers' own config says num_kv_heads 71 beside it."""
    alone = only(FALCON)
    assert (alone.num_heads, alone.possible_heads[0], alone.kv_rows) == (None, 71, 64)
    config = {"num_attention_heads": 71, "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False}
    layer = only(FALCON, config | {"hidden_size": 4544})
    assert (layer.family, layer.num_heads, layer.num_kv_heads, layer.head_dim) == ("falcon", 71, 1, 64)
    assert not any("shapes are used" in sentence for sentence in layer.evidence)


LLAMA = under("model.layers.0.self_attn.", four(f"{PROJ} o_proj", (ROWS, E), (KV, E)))
TABLES: dict[str, tuple[Shapes, Shapes, int, int]] = {
    "q_norm": (LLAMA, {"model.layers.0.self_attn.q_norm.weight": (5,)}, 6, 5),
    "rotary": (
        under("model.layers.0.self_attn.", four(f"{PROJ} o_proj", (60, E), (20, E))),
        {"model.rotary_emb.inv_freq": (5,)},
        6,
        10,
    ),
    "rope of meta": (under("layers.0.attention.", four("wq wk wv wo", (60, E), (20, E))), {"rope.freqs": (5,)}, 6, 10),
    "swin": (
        under("layers.0.blocks.0.attn.", {"qkv.weight": (63, E), "proj.weight": (E, E)}),
        {"layers.0.blocks.0.attn.relative_position_bias_table": (9, 3)},
        3,
        7,
    ),
    "t5": (
        under("encoder.block.3.layer.0.SelfAttention.", four("q k v o", (35, E), (35, E))),
        {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 7)},
        7,
        5,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_file_say_the_counts(name: str) -> None:
    shapes, table, heads, head_dim = TABLES[name]
    assert only(shapes).num_heads is None
    layer = only(shapes | table)
    assert (layer.num_heads, layer.head_dim, layer.possible_heads[0]) == (heads, head_dim, heads)


def test_a_norm_over_all_heads_says_nothing() -> None:
    assert only(LLAMA | {"model.layers.0.self_attn.q_norm.weight": (ROWS,)}).num_heads is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num_attention_heads": 4}, "does not fit"),
        ({"num_attention_heads": 6, "head_dim": 3}, "does not fit"),
        ({"num_attention_heads": 6, "hidden_size": 33}, "is for width 33"),
        ({"num_attention_heads": True}, "not in the weights"),
        ({"num_attention_heads": [6, 6]}, "not in the weights"),
        ({"num_attention_heads": -6}, "not in the weights"),
        ({"num_attention_heads": "6"}, "not in the weights"),
    ],
)
def test_a_config_that_does_not_fit_is_not_used(config: dict[str, Any], reason: str) -> None:
    layer = only(LLAMA, config)
    assert layer.num_heads is None
    assert any(reason in sentence for sentence in layer.evidence)


def test_shapes_win_over_the_configs_kv_heads() -> None:
    layer = only(LLAMA, {"num_attention_heads": 6, "num_key_value_heads": 6})
    assert (layer.num_heads, layer.num_kv_heads) == (6, 3)
    assert any("shapes give 3" in sentence for sentence in layer.evidence)


def test_a_nested_config_is_chosen_by_name_where_widths_agree() -> None:
    shapes = under("text_model.layers.0.self_attn.", four(f"{PROJ} out_proj"))
    shapes |= under("vision_model.layers.0.self_attn.", four(f"{PROJ} out_proj"))
    towers = {"text_config": {"hidden_size": E, "num_heads": 3}, "vision_config": {"hidden_size": E, "num_heads": 7}}
    assert [layer.num_heads for layer in find_layers(shapes, towers)] == [3, 7]


# What does not fit, and reading


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("o_proj.weight", (20, ROWS)),
        ("k_proj.weight", (E, KV)),
        ("v_proj.weight", (KV - 1, E)),
        ("q_proj.bias", (ROWS - 1,)),
    ],
)
def test_a_cut_or_turned_matrix_is_listed_said_and_not_read(name: str, shape: tuple[int, ...]) -> None:
    shapes = under("attn.", four(f"{PROJ} o_proj", (ROWS, E), (KV, E), bias="q")) | {f"attn.{name}": shape}
    layer = only(shapes, {"num_heads": 6})
    assert any(f"attn.{name}" in sentence for sentence in layer.evidence[1:])
    with pytest.raises(MhaError) as caught:
        read_weights(layer, lambda wanted: torch.zeros(shapes[wanted]))
    assert caught.value.field == "checkpoint"


def test_a_layer_without_output_is_listed_and_not_read() -> None:
    shapes = under("attn.", {"q_proj.weight": (E, E), "k_proj.weight": (E, E), "v_proj.weight": (E, E)})
    layer = only(shapes, {"num_heads": 3})
    assert (layer.q_rows, layer.num_heads) == (E, 3)
    with pytest.raises(MhaError, match="no output projection"):
        read_weights(layer, lambda name: torch.zeros(shapes[name]))


def test_transposed_matrices_are_known_by_their_biases() -> None:
    shapes = under("attn.", four("w_q w_k w_v w_o", (E, ROWS), (E, ROWS)))
    shapes |= {f"attn.w_{n}.bias": (ROWS,) for n in "qkv"} | {"attn.w_o.bias": (E,)}
    layer = only(shapes, {"num_heads": 6})
    assert (layer.transposed, layer.embed_dim, layer.q_rows) == (True, E, ROWS)
    values = {name: torch.randn(shape) for name, shape in shapes.items()}
    _, weights = read_weights(layer, values.__getitem__)
    assert torch.equal(weights.q, values["attn.w_q.weight"].T)


def test_beits_biases_beside_a_fused_matrix() -> None:
    shapes: Shapes = {"qkv.weight": (63, E), "q_bias": (E,), "v_bias": (E,), "proj.weight": (E, E), "proj.bias": (E,)}
    values = {f"blocks.0.attn.{name}": torch.randn(shape) for name, shape in shapes.items()}
    layer = only({name: tuple(value.shape) for name, value in values.items()}, {"num_heads": 3})
    _, weights = read_weights(layer, values.__getitem__)
    assert torch.equal(weights.q_bias, values["blocks.0.attn.q_bias"])
    assert torch.equal(weights.v_bias, values["blocks.0.attn.v_bias"])
    assert not weights.k_bias.any()
    assert torch.equal(weights.k, values["blocks.0.attn.qkv.weight"][E : 2 * E])


def test_reading_gives_float32_and_only_needed_sizes() -> None:
    values = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in LLAMA.items()}
    config, weights = read_weights(only(LLAMA), values.__getitem__, num_heads=6)
    assert (config.embed_dim, config.num_heads, config.kv_heads, config.head_dim) == (E, 6, 3, 5)
    assert (config.bias, config.scale, config.rope_theta, config.kdim) == (False, None, None, None)
    assert weights.q.dtype == torch.float32
    assert torch.equal(weights.q, values["model.layers.0.self_attn.q_proj.weight"].float())


@pytest.mark.parametrize(
    ("counts", "field"),
    [({}, "num_heads"), ({"num_heads": 5}, "num_heads"), ({"num_heads": 6, "num_kv_heads": 6}, "num_kv_heads")],
)
def test_counts_that_are_missing_or_do_not_fit(counts: dict[str, int], field: str) -> None:
    with pytest.raises(MhaError) as caught:
        read_weights(only(LLAMA), lambda name: torch.zeros(LLAMA[name]), **counts)
    assert caught.value.field == field
    suggested = dict(caught.value.try_[0].changes)[field]
    repaired = {**counts, field: suggested}
    read_weights(only(LLAMA), lambda name: torch.zeros(LLAMA[name]), **repaired)


SPELLINGS = """
q k v o out qkv kv proj q_proj k_proj v_proj out_proj o_proj query key value dense self output 0 1 12 attn attention
cross self_attn weight bias in_proj_weight in_proj_bias query_key_value c_attn c_proj q_norm linears rope
relative_attention_bias inv_freq freqs blk attn_q attn_k attn_v to_q to_kv to_qkv qweight weight_scale base_layer ٣ ² é
"""
WORDS = SPELLINGS.split()
SPELLED = [name for names in SEPARATE for name in names.split()] + [name[:-1] for names in FUSED for name in names]
LIKELY = st.tuples(
    st.sampled_from(["a.", "attention.", "crossattn.0.", ""]),
    st.sampled_from(sorted({*SPELLED, "in_proj_", "q_proj_", "q_attn", "to_kv", "kv", "q", "q_norm"})),
    st.sampled_from([".weight", ".weight", "weight", ".bias", "bias", "", ".base_layer.weight", ".qweight"]),
).map("".join)
NAMES = LIKELY | LIKELY | st.lists(st.sampled_from(WORDS), max_size=4).map(".".join) | st.text(max_size=9)
SHAPES = st.lists(st.integers(0, 24) | st.sampled_from([10**12, 63]), max_size=4).map(tuple)
CONFIGS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.text(max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from(
            ["num_heads", "n_head", "head_dim", "hidden_size", "num_kv_heads", "text_config", "qkv_layout"]
        ),
        inner,
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(shapes=st.dictionaries(NAMES, SHAPES | st.just((21, 21)), max_size=20), config=CONFIGS)
def test_nothing_makes_it_fail(shapes: Shapes, config: Any) -> None:
    layers = find_layers(shapes, config if isinstance(config, dict) else None)
    used = [name for layer in layers for role, name in layer.tensors.items() if not role.endswith("_bias")]
    assert len(set(used)) == len(used)
    assert len({layer.name for layer in layers}) == len(layers)
    for layer in layers:
        assert set(layer.tensors.values()) <= set(shapes)
        assert layer.family in FAMILIES
        assert all(layer.q_rows % heads == 0 for heads in layer.possible_heads)
        if layer.num_heads is not None:
            assert layer.num_heads in layer.possible_heads


SIZES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 7), st.integers(1, 23))


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, damage=st.sampled_from(["q_proj", "k_proj", "v_proj", "o_proj"]), cut=SHAPES)
def test_one_damaged_matrix_never_raises(sizes: tuple[int, int, int, int], damage: str, cut: tuple[int, ...]) -> None:
    kv_heads, group, head_dim, width = sizes
    rows = (kv_heads * group * head_dim, width)
    whole = under("attn.", four(f"{PROJ} o_proj", rows, (kv_heads * head_dim, width)))
    assert kv_heads * group in only(whole).possible_heads
    find_layers(whole | {f"attn.{damage}.weight": cut}, {"num_heads": kv_heads * group})
