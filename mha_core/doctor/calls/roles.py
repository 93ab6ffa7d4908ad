"""What the arguments of a forward method are for, read from their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

_ROLES: tuple[tuple[str, str], ...] = (
    ("use_cache", r"(use|return|update|with)_(kv_)?(cache|present|past)"),
    ("cache", r"(past_key_values?|layer_past|past|past_kv|(kv_?)?cache|.*_cache|past_state|incremental_state)"),
    (
        "weights",
        r"((need|return|output|with|give)_(\w+_)?(weights?|attn|attns|attentions?|attn_weights|scores|probs)"
        r"|return_attn_weights|need_head_weights|return_attention_scores|returns?_weights)",
    ),
    ("average", r"average_attn_weights"),
    ("causal", r"(is_|use_|apply_)?causal(_mask)?|causal_masking|tgt_is_causal|memory_is_causal"),
    ("rotary", r"(position_embeddings?|rotary(_pos)?_emb(eddings?)?|rope|freqs_cis|freqs|cos_sin)"),
    ("cos", r"cos|freqs_cos|rope_cos"),
    ("sin", r"sin|freqs_sin|rope_sin"),
    ("positions", r"(position_ids?|positions?|cache_position|pos_ids|input_pos|start_pos|offset|input_positions)"),
    ("residual", r"residual"),
    ("sides", r"(hw|h_w|hw_shape|x_size|spatial_shape|spatial_size|input_resolution|resolution|grid_size|feat_size)"),
    ("alibi", r"alibi\w*"),
    ("head_mask", r"(layer_)?head_mask"),
    ("lengths", r"(\w*_)?(valid_)?(lens?|lengths?)|valid_lens?"),
    (
        "mask",
        r"(\w*_)?mask(s|ing)?(_\w+)?|(\w*_)?(attn|attention|pad|padding|key_padding)_(mask|bias)|pad(ding)?|mask\d?"
        r"|(is_)?(keep|keys?_to_keep|attend|attendable|allow(ed)?|visible|valid|hide|ignore|pad|padded)(_(keys?|tokens?))?",
    ),
    (
        "context",
        r"(context|memory|mem|encoder_hidden_states|encoder_outputs?|enc_outputs?|enc_out|enc|"
        r"key_value_states|kv|key_value|key_values|cond|conditioning|cross_input|source|x_kv|kv_input|"
        r"encoder_out|encoder_states|ctx|inputs?_kv|media|cross|x_?kv|y|x2|xa|x_?k_?v|x_2|other|kv_states|encoder_output)",
    ),
    (
        "query",
        r"(dec(oder)?_(out(put)?s?|hiddens?|states?)|q|queries|query|Q|x_?q|q_?in(put)?|query_(states|input|tensor|layer)|q_x|inputs?_q|queries_?in|latents?)",
    ),
    ("key", r"(k|keys?|K|x_?k|k_?in(put)?|key_(states|input|tensor|layer)|k_x|inputs?_k)"),
    ("value", r"(v|values?|V|x_?v|v_?in(put)?|value_(states|input|tensor|layer)|v_x|inputs?_v)"),
    (
        "tokens",
        r"(x|xs|hidden_states?|hiddens?|inputs?|src|tgt|tokens?|embeddings?|embeds?|emb|h|hs|feats?|features?|"
        r"seq|sequence|input_tensor|inp|data|X|x1|z|states?|tensor|in_features|batch|x_in|target|trg|input_embeds)",
    ),
)
MASKS = ("mask", "lengths")
_SIDES = ("H W", "h w", "height width", "Hh Ww", "hh ww", "h_dim w_dim", "x_h x_w", "n_rows n_cols", "rows cols")
STREAMS = ("query", "key", "value", "context", "tokens")


@dataclass(frozen=True)
class Argument:
    """One argument of forward. `role` is "" where the name says nothing."""

    name: str
    role: str
    required: bool
    positional: bool
    default: Any = None


def role_of(name: str) -> str:
    """Give the role of an argument by its name, "" where it is unknown."""
    lowered = name if len(name) == 1 else name.lower()
    for role, pattern in _ROLES:
        if re.fullmatch(pattern, lowered):
            return role
    return ""


def arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    """Read a signature; *args and **kwargs are left out."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        positional = parameter.kind is not parameter.KEYWORD_ONLY
        found.append(Argument(parameter.name, role_of(parameter.name), required, positional, default))
    named = {one.name: one for one in found}
    for pair in (written.split() for written in _SIDES):  # a map's height and width, beside its tokens
        if all(name in named and named[name].required for name in pair):
            named |= {name: replace(named[name], role=f"side {place}") for place, name in enumerate(pair)}
    return tuple(named.values())
