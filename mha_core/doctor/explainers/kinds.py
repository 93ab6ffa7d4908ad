"""The kinds of mistakes, in words, and which of them an unknown text resembles. A resemblance, never a diagnosis."""

from __future__ import annotations

import re

KINDS = {
    "head_split": r"heads?|split|transpose|permute|contiguous|reshape|view|stride",
    "divisibility": r"divisib\w+|divides?|multiple|head_dim|remainder",
    "cross_dims": r"cross-?attention|encoder|decoder|kdim|vdim|memory length|source length|target length",
    "mask_shape": r"masks?|attn_mask|attention_mask|padding_mask|key_padding_mask",
    "mask_polarity": r"inverted|opposite|reversed|true means|upside|polarity",
    "mask_dtype": r"bool|boolean|mask dtype|uint8",
    "mask_value": r"-inf|masked_fill|-1e9|-1e4|fill value|-10000",
    "full_mask": r"nan|fully masked|all masked|empty row",
    "causal": r"causal|future|autoregressive|look.?ahead|tril|triu",
    "dropout": r"dropout|dropout_p|eval mode|non-?deterministic",
    "softmax_dim": r"softmax|sum to (?:1|one)|all ones",
    "scale": r"scale|scaling|sqrt|temperature|flat(?:ter)?",
    "qkv_layout": r"qkv|in_proj\w*|checkpoint|state_dict|fused|c_attn|q_proj|convert\w*",
    "gqa": r"grouped|gqa|mqa|kv heads?|key_value_heads|repeat_kv|multi-?query",
    "init": r"initiali[sz]\w+|xavier|kaiming|std|zeros?|random start",
    "grad": r"gradients?|backward|vanish\w*|explod\w*|autograd|grad",
    "weights_reading": r"attention weights?|attention maps?|heat ?maps?|attentions|need_weights|visuali[sz]\w+",
    "batch_first": r"batch_first|batch first|sequence first",
    "flops": r"flops?|macs?|operations|profiler",
    "memory": r"memory|oom|allocat\w+|gib|gb",
    "amp": r"half|float16|fp16|bf16|bfloat16|autocast|mixed precision|overflow",
    "position": r"position\w*|rotary|rope|alibi|sinusoid\w*",
}
_SUBJECT = re.compile(
    r"attn|attention|heads?\b|softmax|transformer|mask|q_proj|qkv|einsum|query|tensor|torch|causal|scores",
    re.IGNORECASE,
)
_FOUND = {kind: re.compile(rf"\b(?:{words})(?!\w)", re.IGNORECASE) for kind, words in KINDS.items()}


_ERROR_SUBJECT = re.compile(
    r"attn|attention|softmax|transformer|q_proj|qkv|einsum|tensor|torch|causal|num_heads|head_dim|mask\b", re.IGNORECASE
)


def nearest(text: str, is_error: bool) -> tuple[str, tuple[str, ...]]:
    """Give the kind whose words a text uses most, with these words; ("", ()) where it is not about attention.

    An error has to speak of tensors or attention; a description in prose may say "heads" or "scores" only.
    """
    if not (_ERROR_SUBJECT if is_error else _SUBJECT).search(text):
        return "", ()
    found = {
        kind: tuple(dict.fromkeys(word.lower() for word in pattern.findall(text))) for kind, pattern in _FOUND.items()
    }
    kind = max(found, key=lambda name: len(found[name]))
    return (kind, found[kind]) if found[kind] else ("", ())
