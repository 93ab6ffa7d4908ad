"""What the attention layer demands of its inputs: three axes, the right widths, one batch, a key for every value.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.config import AttentionConfig
from mha_core.errors import MhaError
from mha_core.masks import check_mask


def check_inputs(
    config: AttentionConfig, dtype: torch.dtype, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> None:
    """Refuse inputs that the layer cannot take, before any product.

    Args:
        config: the layer. dtype: of its weights.
        query: (B, Sq, embed_dim). key: (B, Sk, kdim). value: (B, Sk, vdim).
        mask: boolean, broadcastable to (B, H, Sq, Sk).

    Raises:
        MhaError: axes, widths, batch, lengths, number formats or the mask do not fit; it says which and what would.
    """
    widths = {"query": (query, config.embed_dim), "key": (key, config.key_dim), "value": (value, config.value_dim)}
    for name, (tensor, width) in widths.items():
        shape = tuple(tensor.shape)
        if tensor.ndim != 3:
            problem = f"{name} has shape {shape}; it must have three axes (B, S, {width})"
            hint = f"; write {name}[None] for a batch of one" if tensor.ndim == 2 else ""
            raise MhaError(name, shape, f"(B, S, {width})", problem=problem + hint)
        if shape[-1] != width:
            problem = f"{name} of shape {shape} is {shape[-1]} wide, but the layer's {name} projection takes {width}"
            raise MhaError(name, shape, f"(B, S, {width})", problem=problem)
        if shape[0] != query.shape[0]:
            problem = f"{name} has batch {shape[0]}, but query has batch {query.shape[0]}"
            hint = f"; write {name}.expand({query.shape[0]}, -1, -1) to share it" if shape[0] == 1 else ""
            raise MhaError(name, shape, f"batch {query.shape[0]}", problem=problem + hint)
        if tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
            problem = f"{name} is {tensor.dtype}, but the weights are {dtype}; write {name}.to({dtype})"
            raise MhaError(name, str(tensor.dtype), str(dtype), problem=problem)
    if value.shape[1] != key.shape[1]:
        problem = f"there are {key.shape[1]} keys but {value.shape[1]} values; every key needs its value"
        raise MhaError("value", tuple(value.shape), f"as long as the key: {key.shape[1]}", problem=problem)
    if mask is not None:
        check_mask(mask, query.shape[0], config.num_heads, query.shape[1], key.shape[1])
