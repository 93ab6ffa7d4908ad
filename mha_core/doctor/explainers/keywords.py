"""Misspelled arguments of attention layers, and the names that other libraries have for them."""

from __future__ import annotations

import re
from difflib import get_close_matches

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

LAYER = r"MultiheadAttention|Transformer(?:En|De)coder(?:Layer)?|\bTransformer\b"
SDPA = "scaled_dot_product_attention"
# the right name: kind of mistake
KNOWN = {
    "batch_first": "batch_first",
    "dropout": "dropout",
    "dropout_p": "dropout",
    "embed_dim": "divisibility",
    "num_heads": "divisibility",
    "d_model": "divisibility",
    "nhead": "divisibility",
    "key_padding_mask": "mask_shape",
    "src_key_padding_mask": "mask_shape",
    "tgt_key_padding_mask": "mask_shape",
    "memory_key_padding_mask": "mask_shape",
    "attn_mask": "mask_shape",
    "src_mask": "mask_shape",
    "tgt_mask": "mask_shape",
    "memory_mask": "mask_shape",
    "need_weights": "weights_reading",
    "average_attn_weights": "weights_reading",
    "is_causal": "causal",
    "enable_gqa": "gqa",
    "scale": "scale",
    "kdim": "cross_dims",
    "vdim": "cross_dims",
    "dim_feedforward": "cross_dims",
    "add_bias_kv": "init",
    "add_zero_attn": "init",
    "norm_first": "init",
    "num_encoder_layers": "cross_dims",
    "num_decoder_layers": "cross_dims",
}
INIT = ("embed_dim", "num_heads", "dropout", "add_bias_kv", "add_zero_attn", "kdim", "vdim", "batch_first")
CALL = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
FUNCTION = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
SYNONYMS = {
    "embed_dim": ("embed_size", "embedding_dim", "d_model", "hidden_size", "hidden_dim", "dim", "emb_dim", "n_embd"),
    "num_heads": ("n_heads", "n_head", "num_head", "heads", "nhead", "nheads", "num_attention_heads", "head_num"),
    "d_model": ("embed_dim", "hidden_size", "embed_size", "dim"),
    "nhead": ("num_heads", "n_heads", "n_head", "heads", "nheads"),
    "key_padding_mask": ("padding_mask", "pad_mask", "src_padding_mask", "attn_padding_mask"),
    "dropout_p": ("dropout", "attn_dropout", "p"),
    "dropout": ("attn_dropout", "dropout_rate", "attention_dropout", "p"),
    "kdim": ("key_dim", "k_dim"),
    "vdim": ("value_dim", "v_dim"),
}
ALONE = (
    "batch_first",
    "key_padding_mask",
    "need_weights",
    "average_attn_weights",
    "num_heads",
    "is_causal",
    "attn_mask",
)


def _names(what: str) -> tuple[str, ...]:
    """Give the arguments of what was called; () where it is nothing of attention."""
    if SDPA in what:
        return FUNCTION
    if "MultiheadAttention" in what:
        return CALL if what.endswith("forward") else INIT
    if re.search(LAYER, what):
        return tuple(name for name in KNOWN if name not in ("embed_dim", "num_heads", *FUNCTION[1:], *CALL[1:]))
    return ()


def misspelled(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an argument that is nearly one of the layer's, or one under another library's name."""
    what, name = match["what"] or "", match["name"]
    names = _names(what)
    other = next((right for right in names if name in SYNONYMS.get(right, ())), None)
    near = get_close_matches(name, names, 1, 0.75)
    if not names and what in ("", "__init__", "forward"):
        near = get_close_matches(name, ALONE, 1, 0.88)
    if name in names or (name in KNOWN and other is None) or not (other or near):
        return None
    right = other or near[0]
    reason = "the name it has here is" if other else "a misspelling of"
    said = f"{what or 'The layer'}{'()' if what else ''} has no argument {name}: {reason} {right}."
    return Explanation(True, KNOWN[right], said, (f"{right}=...",))


def its_mask(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain `mask` or `attention_mask` given to nn.MultiheadAttention: its masks have the other sense."""
    said = (
        f"MultiheadAttention has no argument {match['name']}: it has key_padding_mask (B, Sk) and attn_mask (Sq, Sk) "
        "or (B * H, Sq, Sk). In both True = may NOT attend, the opposite of scaled_dot_product_attention and of "
        "transformers' attention_mask (1 = may attend)."
    )
    fixes = ("mha(x, x, x, key_padding_mask=~keep) for keys (B, Sk)", "mha(x, x, x, attn_mask=~keep) for pairs")
    return Explanation(True, "mask_shape", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(
        r"MultiheadAttention\.forward\(\) got an unexpected keyword argument '?(?P<name>mask|attention_mask)\b",
        its_mask,
    ),
    rule(r"(?:\b(?P<what>[\w.]{1,80})\(\) )?got an unexpected keyword argument '?(?P<name>\w+)", misspelled),
    says(
        r"unexpected keyword argument '?(?P<name>use_flash_attention_2|_attn_implementation_autoset|use_sdpa)\b",
        "amp",
        "<name> is no argument of this version: transformers chooses its kernel by attn_implementation.",
        "AutoModel.from_pretrained(name, attn_implementation='flash_attention_2'), or 'sdpa'",
    ),
    says(
        r"__init__\(\) got an unexpected keyword argument '?attn_implementation\b",
        "weights_reading",
        "attn_implementation belongs to from_pretrained, from_config or the configuration, not to the constructor of "
        "the model (transformers before 4.36 have none at all).",
        "AutoModel.from_pretrained(name, attn_implementation='eager')",
        "config._attn_implementation = 'eager' before Model(config)",
    ),
    says(
        r"Transformer(?P<part>Decoder(?:Layer)?|)\.forward\(\) missing \d required positional arguments?: .*?"
        r"'(?P<name>memory|tgt)'",
        "cross_dims",
        "A decoder reads two sequences and got one: <name> is missing. nn.Transformer takes (src, tgt), its decoder "
        "(tgt, memory), where memory is the encoder's output.",
        "decoder(tgt, memory); for self-attention alone take nn.TransformerEncoder with a causal mask",
    ),
    says(
        r"specify (?:exactly one of|either) decoder_input_ids or decoder_inputs_embeds",
        "cross_dims",
        "An encoder-decoder model needs the decoder's own input besides input_ids: its queries come from there.",
        "model(input_ids=ids, decoder_input_ids=targets), or labels=targets, which the decoder's ids are made of",
    ),
    says(
        r"encoder_hidden_states are (?:passed|given).{0,90}cross-attention layers",
        "cross_dims",
        "encoder_hidden_states were given to layers that have self-attention only.",
        "config.add_cross_attention=True (and is_decoder=True) before the model is built",
    ),
)
