"""Attention layers of transformers, eager and SDPA: called by name, with masks, positions and caches of their kind."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core.doctor.subject import Inputs, Mode, Subject, examine

transformers = pytest.importorskip("transformers")

B, S = 2, 5
KEYS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
TRIL = torch.ones(S, S, dtype=torch.bool).tril()


def build(name: str, implementation: str | None) -> nn.Module:
    torch.manual_seed(0)
    family = name.split("-")[0]
    source = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    how = {"attn_implementation": implementation}
    llama = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, **how}
    bert = {"hidden_size": 24, "num_attention_heads": 4, **how}
    makers: dict[str, Callable[[], Any]] = {
        "bert": lambda: source.BertSelfAttention(transformers.BertConfig(**bert)),
        "bert-block": lambda: source.BertAttention(transformers.BertConfig(**bert)),
        "bert-cross": lambda: source.BertAttention(transformers.BertConfig(**bert), is_cross_attention=True),
        "gpt2": lambda: source.GPT2Attention(transformers.GPT2Config(n_embd=24, n_head=4, **how), layer_idx=0),
        "llama": lambda: source.LlamaAttention(transformers.LlamaConfig(**llama), layer_idx=0),
        "mistral": lambda: source.MistralAttention(transformers.MistralConfig(**llama), layer_idx=0),
        "t5": lambda: source.T5Attention(transformers.T5Config(d_model=24, d_kv=6, num_heads=4, **how), True, 0),
        "vit": lambda: source.ViTAttention(transformers.ViTConfig(**bert)),
        "whisper": lambda: source.WhisperAttention(
            24, 4, layer_idx=0, config=transformers.WhisperConfig(d_model=24, **how)
        ),
    }
    layer: nn.Module = makers[name]()
    return layer.eval()


def by_hand(name: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """The layer called as its model calls it, with an additive mask (B, 1, S, S)."""
    named: dict[str, Any] = {"mask" if name == "t5" else "attention_mask": mask}
    if name in ("llama", "mistral"):
        angles = torch.outer(torch.arange(S).float(), 10000.0 ** (-torch.arange(0, 8, 2).float() / 8))
        angles = torch.cat([angles, angles], -1).expand(B, -1, -1)
        named["position_embeddings"] = (angles.cos(), angles.sin())
    output: Tensor = layer(x, **named)[0]
    return output


NAMES = ["bert", "bert-block", "gpt2", "llama", "mistral", "t5", "vit", "whisper"]
LAYERS = [(name, "eager") for name in NAMES] + [(name, "sdpa") for name in ("bert", "gpt2", "llama", "mistral")]


@pytest.fixture(scope="module")
def subjects() -> dict[tuple[str, str | None], Subject]:
    made = [*LAYERS, ("llama", None), ("bert-cross", "eager")]
    return {(name, how): examine(build(name, how)) for name, how in made}


@pytest.mark.parametrize(("name", "how"), LAYERS)
def test_outputs_are_those_of_the_layer(subjects: dict[tuple[str, str | None], Subject], name: str, how: str) -> None:
    subject, layer = subjects[name, how], build(name, how)
    inputs = subject.inputs(B, S)
    causal = bool(subject.expects_causal)
    assert causal is (how == "sdpa" and name != "bert")
    for keys, pairs in ((KEYS, None), (None, TRIL), (KEYS, TRIL)):
        keep = torch.ones(B, S, S, dtype=torch.bool) if keys is None else KEYS[:, None].expand(B, S, S)
        keep = keep if pairs is None else keep & pairs
        keep = keep & TRIL if causal else keep  # a mask given takes the place of the layer's own
        mask = torch.zeros(B, 1, S, S).masked_fill(~keep[:, None], torch.finfo(torch.float32).min)
        expected = by_hand(name, layer, inputs.query, mask)
        assert torch.allclose(subject.call(inputs, keep_keys=keys, keep_pairs=pairs).output, expected, atol=1e-5)
    assert torch.allclose(subject.call(inputs).output, by_hand(name, layer, inputs.query, None), atol=1e-5)
    weights = subject.call(inputs, mode=Mode(weights=True)).weights
    assert (weights is not None) is (how == "eager")
    assert weights is None or weights.shape == (B, 4, S, S)
    assert subject.is_library
    assert subject.files == ()


def test_sizes_and_signs(subjects: dict[tuple[str, str | None], Subject]) -> None:
    llama = subjects["llama", None]
    assert (llama.embed_dim, llama.num_heads, llama.num_kv_heads, llama.head_dim) == (32, 4, 2, 8)
    assert llama.position_signs == ("rotary",)
    assert subjects["t5", "eager"].position_signs == ("relative bias",)
    assert subjects["vit", "eager"].position_signs == ()
    assert [subjects[name, "eager"].num_kv_heads for name in ("whisper", "gpt2", "bert")] == [4, 4, 4]


def test_a_context_only_where_the_layer_can_use_one(subjects: dict[tuple[str, str | None], Subject]) -> None:
    takes = {name: subjects[name, "eager"].takes for name in (*NAMES, "bert-cross")}
    assert {name for name, one in takes.items() if one == "context"} == {"t5", "whisper", "bert-cross"}
    cross = subjects["bert-cross", "eager"]
    inputs = cross.inputs(B, 3, S)
    layer = build("bert-cross", "eager")
    mask = torch.zeros(B, 1, 1, S).masked_fill(~KEYS[:, None, None], float("-inf"))
    expected = layer(inputs.query, encoder_hidden_states=inputs.key, encoder_attention_mask=mask)[0]
    assert torch.allclose(cross.call(inputs, keep_keys=KEYS).output, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_the_librarys_own_cache(subjects: dict[tuple[str, str | None], Subject], name: str) -> None:
    subject = subjects[name, "sdpa"]
    assert subject.has_cache
    inputs = subject.inputs(B, S)
    whole = subject.call(inputs).output
    copy, cache, outputs = subject.fresh(), None, []
    for start, stop in ((0, 3), (3, 4), (4, 5)):
        tokens = inputs.query[:, start:stop]
        answer, cache = subject.call_cached(copy, Inputs(tokens, tokens, tokens), cache, start)
        outputs.append(answer.output)
    assert torch.allclose(torch.cat(outputs, 1), whole, atol=1e-5)


def test_the_projects_own_layer() -> None:
    from mha_core import MultiHeadAttention

    subject = examine(MultiHeadAttention(24, 4, num_kv_heads=2).eval())
    assert subject.is_library
    assert (subject.takes, subject.num_heads, subject.num_kv_heads) == ("qkv", 4, 2)
    assert subject.key_mask
    assert subject.sample_pair_mask
