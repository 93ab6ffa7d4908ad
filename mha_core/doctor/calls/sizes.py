"""Widths and head counts of a module: from attributes by many names, a config, and the shapes of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


def _words(names: str) -> list[str]:
    return names.split()


WIDTHS = _words(
    "embed_dim d_model hidden_size n_embd dim d_embed emb_dim embedding_dim model_dim dim_model hidden_dim n_embed "
    "embed_size emb_size model_size d_in in_dim input_dim in_features in_channels query_dim q_dim query_size "
    "input_size d_q_in dmodel hid_dim num_hiddens units width channels all_head_size inner_dim d_input size dim_in "
    "d_hidden embedding_size emb d e E C c D_model"
)
HEADS = _words(
    "num_heads n_heads n_head num_attention_heads heads nhead nheads num_head head_num heads_num number_of_heads "
    "num_q_heads n_q_heads n_query_heads num_query_heads attention_heads encoder_attention_heads n_local_heads "
    "nb_heads attn_heads n_attn_heads nr_heads h H nh head"
)
KV_HEADS = _words(
    "num_kv_heads n_kv_heads num_key_value_heads kv_heads n_kv_head num_kv_head n_head_kv num_query_groups "
    "n_local_kv_heads h_kv Hkv hkv kv_head kv_n_heads n_kv num_kv nkv"
)
HEAD_DIMS = _words(
    "head_dim d_k dim_head head_size attention_head_size dim_per_head d_head dk per_head_dim size_per_head depth "
    "key_value_proj_dim d_kv dim_k head_width head_features d_key hd dh"
)
KEY_WIDTHS = _words(
    "kdim key_dim key_size k_dim context_dim memory_dim kv_dim encoder_dim cross_dim cross_attention_dim d_context"
)
VALUE_WIDTHS = _words("vdim value_dim value_size v_dim")
_LENGTHS = r"len|block_?size|n_?tokens|num_tokens|num_patches|n_?patches|n_ctx|window|^T$|^L$|^N$"
MAX_FIXED_LENGTH = 256
_CONFIGS = ("config", "cfg", "args", "params", "hparams", "configuration")


@dataclass(frozen=True)
class Sizes:
    """What attributes say; None where they say nothing."""

    embed_dim: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    key_dim: int | None
    value_dim: int | None


def declared(module: nn.Module) -> Sizes:
    """Read the sizes a module says of itself."""
    width, heads, kv_heads, head_dim, key, value = (
        first_int(module, names) for names in (WIDTHS, HEADS, KV_HEADS, HEAD_DIMS, KEY_WIDTHS, VALUE_WIDTHS)
    )
    queries = projections(module, "query")
    if head_dim is None and heads and queries:
        per_head = len(queries) == heads > 1 or queries[0] * heads == width or queries[0] % heads != 0
        head_dim = queries[0] if per_head else queries[0] // heads
    own = next((vars(module)[name] for name in KV_HEADS if isinstance(vars(module).get(name), int)), None)
    if own is None and heads and head_dim:
        kv_heads = _kv_heads(module, heads, head_dim) or kv_heads
    return Sizes(width, heads, kv_heads, head_dim, key, value)


def first_int(module: nn.Module, names: list[str]) -> int | None:
    """Give the first positive integer by these names: on the module, in its config, then on its parts."""
    for holder in _holders(module):
        for name in names:
            for spelled in (name, "_" + name):
                value = holder.get(spelled) if isinstance(holder, dict) else getattr(holder, spelled, None)
                if isinstance(value, nn.ModuleList | list | tuple) and names is HEADS and name != "h":
                    value = len(value)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def _holders(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        if part is not module and isinstance(part, nn.Linear | nn.Dropout | nn.LayerNorm | nn.Embedding):
            continue
        yield part
        for name in _CONFIGS:
            value = vars(part).get(name)
            if value is not None and not isinstance(value, nn.Module | int | float | str):
                yield value


_QUERY = r"(^|[_.])(q|query|queries|wq|w_q|to_q|q_proj|w?qkv|in_proj|c_attn|w_qkv|toqkv|q_linear|fc_q|w_qs)($|[_.])"
_KEY = (
    r"(^|[_.])(k|key|keys|wk|w_k|to_k|k_proj|kv|to_kv|kv_proj|k_linear|linear_k|fc_k|w_ks|w_kv|key_proj|c_kv)($|[_.])"
)
_VALUE = r"(^|[_.])(v|value|values|wv|w_v|to_v|v_proj|kv|to_kv|kv_proj|v_linear|fc_v|w_vs|w_kv|c_kv)($|[_.])"
_FUSED = r"qkv|in_proj|c_attn"


def fixed_lengths(module: nn.Module) -> list[int]:
    """List sequence lengths a module may be bound to: window sizes, square buffers, lengths it names."""
    found: list[int] = []
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, tuple) and "window" in name and all(isinstance(side, int) for side in value):
                found.append(math.prod(value))
            if isinstance(value, int) and not isinstance(value, bool) and re.search(_LENGTHS, name):
                found += [value, value**2] if "window" in name else [value, value + 1]
        own = (*part.named_buffers(recurse=False), *part.named_parameters(recurse=False))
        for name, tensor in own:
            square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] if _born(tensor) else False
            if square and re.search("bias|pos|rel|mask|index|table|window", name):
                found.append(int(tensor.shape[-1]))
    return list(dict.fromkeys(length for length in found if 1 < length <= MAX_FIXED_LENGTH))


def _born(tensor: object) -> bool:
    return not isinstance(tensor, nn.UninitializedParameter)


def input_widths(module: nn.Module, part: str = "query") -> list[int]:
    """List widths an input may have, likeliest first: of its projections, of other layers, of bare weights.

    For "key" and "value" only projections named so count.
    """
    pattern = {"query": _QUERY, "key": _KEY, "value": _VALUE}[part]
    found = [(0 if re.search(pattern, name.lower()) else _rank(name), width) for name, width, _ in _layers(module)]
    if part != "query":
        return list(dict.fromkeys(width for rank, width in found if rank == 0))
    found += [(5, int(norm.normalized_shape[-1])) for norm in module.modules() if isinstance(norm, nn.LayerNorm)]
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, nn.UninitializedParameter) and parameter.dim() >= 2:
            found += [(_rank(name) + 6, int(parameter.shape[-1])), (_rank(name) + 7, int(parameter.shape[-2]))]
    found.sort(key=lambda entry: entry[0])
    return list(dict.fromkeys(width for _, width in found if width > 0))


def projections(module: nn.Module, part: str) -> list[int]:
    """List the widths that "query", "key" or "value" is projected to, one per layer named so."""
    pattern = {"query": _QUERY, "key": _KEY, "value": _VALUE}[part]
    named = [(name.lower(), width) for name, _, width in _layers(module)]
    return [width for name, width in named if re.search(pattern, name) and not re.search(_FUSED + "|kv", name)]


def _kv_heads(module: nn.Module, heads: int, head_dim: int) -> int | None:
    """Count key heads by the widths of projections, which know better than a config made for several layers."""
    queries, keys = projections(module, "query"), projections(module, "key")
    if keys and (not queries or queries == [heads * head_dim]):
        return _divided(keys[0], head_dim, heads)
    for name, _, width in _layers(module):
        if re.search(r"(^|[_.])(to_)?(w_?)?(kv|c_kv)(_proj)?($|[_.])", name.lower()):
            return _divided(width, 2 * head_dim, heads)
        if re.search(_FUSED, name.lower()) and width > heads * head_dim:
            return _divided(width - heads * head_dim, 2 * head_dim, heads)
    return None


def _divided(width: int, by: int, heads: int) -> int | None:
    count, rest = divmod(width, by)
    return count if rest == 0 and 0 < count <= heads else None


def _rank(name: str) -> int:
    return 2 if re.search("out|o_proj|c_proj|fc|proj|ff|norm", name.lower()) else 1


def _layers(module: nn.Module) -> Iterator[tuple[str, int, int]]:
    """Name every projection with its input and output width; a list of projections counts as its parent."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.lazy.LazyModuleMixin):
            continue
        if isinstance(getattr(part, "in_features", None), int) and isinstance(getattr(part, "out_features", None), int):
            yield name, part.in_features, part.out_features
        elif type(part).__name__ == "Conv1D" and hasattr(part, "nf"):  # transformers: weight (in, out)
            yield name, int(part.weight.shape[0]), int(part.nf)
        elif isinstance(part, nn.Conv1d | nn.Conv2d):
            yield name, part.in_channels, part.out_channels
