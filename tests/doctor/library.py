"""Attention layers of torch, transformers and this project, small, to be found healthy: names to builders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from torch import nn

from mha_core.attention import MultiHeadAttention

Builder = Callable[[], nn.Module]

TORCH_FLAGS: dict[str, dict[str, object]] = {
    "sequence first": {},
    "batch first": {"batch_first": True},
    "no bias": {"batch_first": True, "bias": False},
    "bias_k and bias_v": {"batch_first": True, "add_bias_kv": True},
    "zero_attn": {"batch_first": True, "add_zero_attn": True},
    "both extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"batch_first": True, "kdim": 14, "vdim": 10},
    "dropout": {"batch_first": True, "dropout": 0.3},
    "sequence first, dropout": {"dropout": 0.3, "bias": False},
}


def torch_layers() -> dict[str, Builder]:
    """nn.MultiheadAttention in its flags, and the layers around it."""
    layers: dict[str, Builder] = {
        f"MultiheadAttention, {name}": partial(nn.MultiheadAttention, 18, 3, **flags)
        for name, flags in TORCH_FLAGS.items()
    }
    for batch_first, norm_first in product((True, False), repeat=2):
        name = f"batch_first={batch_first}, norm_first={norm_first}"
        layers[f"TransformerEncoderLayer, {name}"] = partial(
            nn.TransformerEncoderLayer, 18, 3, 20, 0.1, batch_first=batch_first, norm_first=norm_first
        )
    layers["TransformerDecoderLayer"] = partial(nn.TransformerDecoderLayer, 18, 3, 20, batch_first=True)
    layers["TransformerEncoder"] = lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(18, 3, 20, batch_first=True), 2, enable_nested_tensor=False
    )
    return layers


def transformers_layers(implementation: str) -> dict[str, Builder]:
    """One attention layer of each family, with random weights, by the given attention implementation."""
    from transformers import (
        BertConfig,
        GPT2Config,
        LlamaConfig,
        MistralConfig,
        T5Config,
        ViTConfig,
        WhisperConfig,
    )
    from transformers.models.bert.modeling_bert import BertSelfAttention
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.mistral.modeling_mistral import MistralAttention
    from transformers.models.t5.modeling_t5 import T5Attention
    from transformers.models.vit.modeling_vit import ViTAttention
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    how = {"attn_implementation": implementation}
    bert = BertConfig(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=8, vocab_size=11, **how
    )
    gpt2 = GPT2Config(n_embd=24, n_head=3, n_layer=1, n_positions=64, vocab_size=11, **how)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    llama = LlamaConfig(**sizes, intermediate_size=8, vocab_size=11, **how)
    mistral = MistralConfig(**sizes, intermediate_size=8, vocab_size=11, sliding_window=4, **how)
    t5 = T5Config(d_model=24, d_kv=8, num_heads=3, num_layers=1, d_ff=8, vocab_size=11, **how)
    vit = ViTConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=8, **how)
    whisper = WhisperConfig(
        d_model=24, encoder_attention_heads=3, decoder_attention_heads=3, encoder_layers=1, decoder_layers=1, **how
    )
    return {
        "BERT": partial(BertSelfAttention, bert),
        "GPT-2": partial(GPT2Attention, gpt2, layer_idx=0),
        "LLaMA": partial(LlamaAttention, llama, layer_idx=0),
        "Mistral": partial(MistralAttention, mistral, layer_idx=0),
        "T5": partial(T5Attention, t5, has_relative_attention_bias=True, layer_idx=0),
        "ViT": partial(ViTAttention, vit),
        "Whisper": partial(WhisperAttention, 24, 3, config=whisper, layer_idx=0),
    }


def core_layers() -> dict[str, Builder]:
    """Our own layer, in every projection, layout, split and kernel, with grouped heads, rotation, dropout between."""
    layers: dict[str, Builder] = {}
    projections = (("separate", "stacked"), ("fused", "stacked"), ("fused", "interleaved"))
    ways = product(projections, ("view", "einops"), ("explicit", "chunked", "sdpa"))
    for index, ((projection, layout), split, kernel) in enumerate(ways):
        extra = {
            "num_kv_heads": (None, 2, 1)[index % 3],
            "rope_theta": (None, 10_000.0)[index % 2],
            "dropout": (0.0, 0.2)[index // 2 % 2],
        }
        name = ", ".join((projection, layout, split, kernel, *(f"{n}={v}" for n, v in extra.items() if v)))
        choices = {"projection": projection, "qkv_layout": layout, "head_split": split, "kernel": kernel}
        layers[name] = partial(MultiHeadAttention, 24, 4, **choices, **extra)
    layers["other widths"] = partial(MultiHeadAttention, 24, 4, kdim=14, vdim=10)
    layers["free head size"] = partial(MultiHeadAttention, 25, 3, head_size=7, bias=False)
    return layers
