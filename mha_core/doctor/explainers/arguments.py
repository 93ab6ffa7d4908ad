"""Arguments that a layer or a function does not have: whose name it is, and how the same thing is said elsewhere."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule

# argument: kind, what to know, what to change
ARGUMENTS = {
    "attention_mask": (
        "mask_shape",
        (
            "attention_mask (1 = may attend, (B, Sk)) is transformers' name; nn.MultiheadAttention has "
            "key_padding_mask "
            "(True = hidden, (B, Sk)) and attn_mask (True = hidden, (Sq, Sk))"
        ),
        "mha(x, x, x, key_padding_mask=~attention_mask.bool())",
    ),
    "mask": (
        "mask_shape",
        (
            "the argument is attn_mask in torch ((B, H, Sq, Sk) for scaled_dot_product_attention, True = may attend) "
            "and "
            "attention_mask in transformers"
        ),
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    ),
    "attn_mask": (
        "mask_shape",
        "this layer names its mask otherwise, and the name often goes with the opposite meaning of True",
        "look at forward's signature: mask, attention_mask or key_padding_mask",
    ),
    "key_padding_mask": (
        "mask_shape",
        "scaled_dot_product_attention has one attn_mask only, True = may attend",
        "attn_mask=~key_padding_mask[:, None, None, :]",
    ),
    "src_key_padding_mask": (
        "mask_shape",
        "only nn.TransformerEncoder and its layers have it; the attention itself says key_padding_mask",
        "mha(x, x, x, key_padding_mask=padding)",
    ),
    "is_causal": (
        "causal",
        "this version or layer has no is_causal (torch 2.0 and newer have it)",
        "a causal attn_mask instead: torch.ones(S, S, dtype=torch.bool).triu(1), True = hidden",
    ),
    "causal": (
        "causal",
        "this layer names causality otherwise",
        "is_causal=True in scaled_dot_product_attention, causal=True in flash_attn_func",
    ),
    "scale": (
        "scale",
        "scale came with torch 2.1; before that the factor is always head_dim**-0.5",
        "q = q * (scale * head_dim**0.5) before the call",
    ),
    "softmax_scale": (
        "scale",
        "softmax_scale is flash-attn's name; torch calls it scale",
        "F.scaled_dot_product_attention(q, k, v, scale=...)",
    ),
    "enable_gqa": ("gqa", "enable_gqa came with torch 2.5", "k.repeat_interleave(H // Hkv, dim=1), and the same for v"),
    "num_key_value_heads": (
        "gqa",
        "this configuration knows no grouped queries",
        "a newer version, or KV heads repeated to num_heads",
    ),
    "num_kv_heads": ("gqa", "this layer knows no grouped queries", "KV heads repeated to num_heads"),
    "average_attn_weights": (
        "weights_reading",
        "average_attn_weights came with torch 1.11; before, the weights are always averaged over the heads",
        "F.multi_head_attention_forward of a newer torch, or own scores.softmax(-1)",
    ),
    "need_weights": (
        "weights_reading",
        "only nn.MultiheadAttention has need_weights",
        "output_attentions=True in transformers (eager); scaled_dot_product_attention returns no weights",
    ),
    "output_attentions": (
        "weights_reading",
        "this layer does not return weights by that argument",
        "need_weights=True, average_attn_weights=False in nn.MultiheadAttention",
    ),
    "batch_first": (
        "batch_first",
        "batch_first came with torch 1.9 (and belongs to the constructor, not to the call)",
        "mha(x.transpose(0, 1), ...)[0].transpose(0, 1)",
    ),
    "dropout_p": (
        "dropout",
        "dropout_p belongs to scaled_dot_product_attention; layers take dropout in the constructor",
        "nn.MultiheadAttention(E, H, dropout=0.1)",
    ),
    "position_ids": (
        "position",
        "this layer takes no position_ids: newer layers get cos and sin as position_embeddings",
        "position_embeddings=model.rotary_emb(x, position_ids)",
    ),
    "position_embeddings": (
        "position",
        "this version works out its rotary tables inside the layer",
        "position_ids=... instead",
    ),
    "past_key_value": (
        "causal",
        "the cache is called past_key_values in newer versions, and layer_past in older ones",
        "past_key_values=DynamicCache()",
    ),
    "past_key_values": ("causal", "the cache is called past_key_value in older versions", "past_key_value=cache"),
    "kdim": (
        "cross_dims",
        "this layer takes one width for query, key and value",
        "nn.Linear(kdim, embed_dim) before it",
    ),
    "head_mask": (
        "weights_reading",
        "this version has no head_mask any more",
        "zero the head's columns of the output projection",
    ),
    "window_size": ("mask_shape", "torch has no sliding window argument", "attn_mask = (i - j < window) & (j <= i)"),
}


def argument(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an argument that a layer does not have."""
    name = match["name"]
    if name not in ARGUMENTS or (
        name in ("mask", "scale", "causal") and not problem.hints(r"attention|attn|forward\(\)|mha")
    ):
        return None
    kind, said, fix = ARGUMENTS[name]
    return Explanation(True, kind, f"{match['what'] or 'The call'} has no argument {name}: {said}.", (fix,))


def missing(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an argument that a newer layer wants."""
    name = match["name"]
    if name not in ("attention_mask", "attn_mask", "mask", "key_padding_mask", "position_embeddings"):
        return None
    kind = "position" if name.startswith("position") else "mask_shape"
    said = (
        f"{match['what'] or 'The layer'} wants {name}: attention layers of newer versions get their mask and "
        "positions from the model."
    )
    fix = (
        f"{name}=None where nothing is hidden" if kind == "mask_shape" else f"{name}=model.rotary_emb(x, position_ids)"
    )
    return Explanation(True, kind, said, (fix,))


RULES: tuple[Rule, ...] = (
    rule(
        (
            r"(?:\b(?P<what>[\w.]{1,80})\(\) )?missing \d+ required (?:positional|keyword-only) arguments?: "
            r"'?(?P<name>\w+)"
        ),
        missing,
    ),
    rule(r"(?:\b(?P<what>[\w.]{1,80})\(\) )?got an unexpected keyword argument '?(?P<name>\w+)", argument),
)
