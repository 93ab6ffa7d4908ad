"""Small models with random weights of every family that can be looked into, saved as transformers saves them.

The reference is transformers itself: `eager` loads a second copy of a folder and gives its attention maps. No size
equals another by chance: widths, head counts and vocabularies are different primes or products of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from mha_core.sources.models.text import ModelInput

TEXT = "the cat sat on the mat today\nwe saw three small birds\nrain"  # lines of 7, 5 and 1 words
WORDS = sorted({*TEXT.split(), "a", "dog"})

BERT = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 17, "vocab_size": 97}
LLAMA = {
    "hidden_size": 42, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "num_hidden_layers": 2,
    "intermediate_size": 23, "vocab_size": 89,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SCALED = dict(LLAMA, max_position_embeddings=64)
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1234.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 5000.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0}

Maker = Callable[[], nn.Module]
MAKERS: dict[str, Maker] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**BERT, max_position_embeddings=40)),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**BERT, max_position_embeddings=31, pad_token_id=1)
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(vocab_size=97, dim=15, n_heads=3, n_layers=2, hidden_dim=17)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=83, n_embd=21, n_head=3, n_layer=2, n_positions=37, bos_token_id=1,
                                eos_token_id=2)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "llama_linear": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SCALED, rope_parameters=LINEAR)),
    "llama_llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SCALED, rope_parameters=LLAMA3)),
    "llama_yarn": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SCALED, rope_parameters=YARN)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=3)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**{**LLAMA, "hidden_size": 60})
    ),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(vocab_size=79, hidden_size=33, word_embed_proj_dim=33, num_attention_heads=3,
                               num_hidden_layers=2, ffn_dim=29, max_position_embeddings=41, pad_token_id=1)
    ),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(vocab_size=73, hidden_size=36, num_attention_heads=3, num_hidden_layers=2,
                                   intermediate_size=31, max_position_embeddings=43, rotary_pct=0.5, bos_token_id=1,
                                   eos_token_id=2)
    ),
    "vit": lambda: transformers.ViTModel(
        transformers.ViTConfig(hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=17,
                               image_size=28, patch_size=7)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=71, d_model=21, d_kv=5, num_heads=3, num_layers=2, d_ff=19,
                              decoder_start_token_id=0, relative_attention_num_buckets=8,
                              relative_attention_max_distance=12)
    ),
}  # fmt: skip


def save(maker: Maker, folder: Path, *, with_tokenizer: bool = False, seed: int = 0) -> Path:
    """Save a model whose every value is random, biases and norms included."""
    torch.manual_seed(seed)
    module = maker().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    module.save_pretrained(folder)
    if with_tokenizer:
        numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", *WORDS])}
        tokens = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
        tokens.pre_tokenizer = pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]"
        ).save_pretrained(folder)
    return folder


def eager(folder: Path | str, like: nn.Module, **named: Any) -> nn.Module:
    """A second copy of a model, of the same class, with transformers' own attention."""
    module = type(like).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, **named)
    return module.eval()


@torch.no_grad()
def own_maps(module: nn.Module, given: ModelInput) -> list[Tensor]:
    """The model's attention maps as transformers returns them, in the order of a pass."""
    answer = module(**given.arguments, output_attentions=True)
    if "encoder_attentions" not in answer:
        return list(answer.attentions)
    pairs = zip(answer.decoder_attentions, answer.cross_attentions, strict=True)
    return [*answer.encoder_attentions, *itertools.chain.from_iterable(pairs)]


@torch.no_grad()
def own_logits(module: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    """Logits of the next token at every place, (B, S, V)."""
    return module(**arguments).logits
