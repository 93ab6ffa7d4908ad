"""The key/value cache: tuples of older transformers, the Cache classes of newer ones, and what each of them lacks."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

LAYERS = "cache.layers[i].keys and cache.layers[i].values"
CACHE = r"(?:\w*Cache)"
# attribute of older versions: what serves today
REPLACED = {
    "seen_tokens": "cache.get_seq_length()",
    "_seen_tokens": "cache.get_seq_length()",
    "get_usable_length": "cache.get_seq_length()",
    "get_max_length": "cache.get_max_cache_shape()",
    "key_cache": LAYERS,
    "value_cache": LAYERS,
    "to_legacy_cache": f"tuple((layer.keys, layer.values) for layer in cache.layers), from {LAYERS}",
    "from_legacy_cache": "cache = DynamicCache(); cache.update(k, v, i) for each (k, v) of the tuple",
    "get_seq_length": "cache.get_seq_length() exists since transformers 4.36",
    "get_max_cache_shape": "cache.get_max_length() in versions before 4.48",
}


def replaced(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a name of a cache class that came or went with a version."""
    name = match["name"]
    if name not in REPLACED:
        return None
    said = f"The cache has no {name} in this version: transformers changed what its Cache classes offer several times."
    return Explanation(True, "causal", said, (REPLACED[name], "the transformers version the code was written for"))


def unpacked(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain layers of a cache that do not come as pairs, where the source line loops over one."""
    loop = re.search(r"for [^:]{1,60} in [^:]{0,30}\b(?P<name>\w*(?:past_key|kv_cache|cache)\w*)", problem.whole)
    direct = re.search(r"\w+, ?\w+\)? = (?:self\.)?(?P<name>past_key_values?|layer_past|past)\b", problem.whole)
    found = loop or direct
    if found is None:
        return None
    said = (
        f"Each layer of {found['name']} was unpacked into {match['n']} names and holds another number. Tuples of older "
        "versions hold (keys, values), encoder-decoder ones four tensors; a newer Cache gives (keys, values, sliding "
        "window) per layer."
    )
    fixes = ("for i, layer in enumerate(cache.layers): k, v = layer.keys, layer.values", "k, v, *rest = entry")
    return Explanation(True, "causal", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(r"(?:too many|not enough) values to unpack \(expected (?:at least )?(?P<n>\d+)", unpacked),
    says(
        (
            r"'(?P<type>tuple|list)' object has no attribute "
            r"'(?P<name>get_seq_length|get_usable_length|get_max_cache_shape|get_mask_sizes|is_compileable)'"
        ),
        "causal",
        "past_key_values is a <type>, the cache of older transformers; this version asks it for <name>, which only "
        "a Cache object has.",
        "past_key_values=DynamicCache(), filled by cache.update(k, v, layer) for each pair of the tuple",
        "past_key_values=None for the first call, then what the model returned",
    ),
    rule(rf"(?:type object )?'{CACHE}'(?: object)? has no attribute '(?P<name>\w+)'", replaced),
    says(
        r"'(?P<name>(?:Dynamic|Static|Hybrid|SlidingWindow|Quantized|EncoderDecoder)Cache)' object (?:is not "
        r"subscriptable|does not support indexing|is not iterable)",
        "causal",
        "<name> is no tuple in this version, so past_key_values[layer][0] does not read it.",
        LAYERS,
    ),
    says(
        rf"{CACHE}\.update\(\) missing 1 required positional argument: 'layer_idx'",
        "causal",
        "A cache holds the keys and values of all layers, so it must be told which layer writes.",
        "k, v = cache.update(k, v, self.layer_idx), with layer_idx given to each attention layer",
    ),
)
