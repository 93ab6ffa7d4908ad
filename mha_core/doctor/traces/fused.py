"""What scaled_dot_product_attention keeps to itself: its scores and weights, computed again from its arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.hiding import Masking, hidden_by_adding, is_binary
from mha_core.doctor.traces.products import is_learned
from mha_core.doctor.traces.tracing import Step, Trace

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, eq=False)
class Fused:
    """Arguments with key and value heads repeated, and what follows from them; shapes as in a `Core`."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    scale: float
    bias: Tensor | None
    hidden: Tensor | None
    masks: tuple[Masking, ...]


def arguments(step: Step) -> dict[str, Any]:
    """Name the arguments of a call of scaled_dot_product_attention."""
    return {**dict(zip(NAMES, step.args, strict=False)), **step.kwargs}


def fused(trace: Trace, step: Step) -> Fused:
    """Compute scores and weights of a call of scaled_dot_product_attention; rows without a key have weights 0."""
    given = arguments(step)
    q, k, v = (trace.value(given[name], step.index).detach() for name in NAMES[:3])
    if given.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
    scale = given.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    scores = (q * scale) @ k.transpose(-2, -1)
    masks: list[Masking] = []
    bias = hidden = None
    mask = given.get("attn_mask")
    if mask is not None:
        mask = trace.value(mask, step.index).detach()
        hidden = ~mask if mask.dtype == torch.bool else hidden_by_adding(mask)
        fill = -math.inf
        if mask.dtype != torch.bool:
            fill = float(mask[hidden].max()) if bool(hidden.any()) else 0.0
            rest = mask.masked_fill(hidden, 0.0)
            bias = rest if bool(rest.any()) else None
            if is_binary(mask) and bool(mask.any()) and not is_learned(trace, given["attn_mask"], step.index):
                masks.append(Masking("added as 0 and 1", 1.0, mask == 0, step.place, step, mask))
        if mask.dtype == torch.bool or bool(hidden.any()):
            masks.append(
                Masking("filled" if mask.dtype == torch.bool else "added", fill, hidden, step.place, step, mask)
            )
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if given.get("is_causal"):
        above = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(above, -math.inf)
        hidden = above if hidden is None else hidden | above
        masks.append(Masking("filled", -math.inf, above, step.place, step, None))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return Fused(q, k, v, scores, weights, scale, bias, hidden, tuple(masks))
