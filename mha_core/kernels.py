"""The attention equation in reading order, and three kernels that compute it.

Softmax(q kᵀ · scale) v (Vaswani et al. 2017, eq. 1) with masks where True = may attend. The kernels differ in memory
and speed, never in numbers. Nothing here has parameters; q, k and v come from the module in attention.py.

Axes: B batch, H heads, Sq queries, Sk keys, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_core.errors import MhaError, Suggestion
from mha_core.masks import Fill, check_mask, resolve_fill

CHUNK_ROWS = 256  # queries per step of the chunked kernel: at S = 8192 it holds 1/32 of the S x S matrix


Tap = Callable[[str, Tensor], Tensor]


def untapped(name: str, tensor: Tensor) -> Tensor:
    """Let a tensor pass. A tap is shown every named step of a forward pass, in order, and gives it back."""
    return tensor


def attention_scores(q: Tensor, k: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Compute q kᵀ · scale, plus a bias if there is one. (..., Sq, D), (..., Sk, D) -> (..., Sq, Sk).

    The scale is applied inside the product, before it is rounded: in float16 the raw product passes 65504 long before
    the scaled one, and a scaled copy of q would be one more pass over memory.
    """
    leading, count = q.shape[:-2], math.prod(q.shape[:-2])
    rows, columns = q.reshape(count, *q.shape[-2:]), k.reshape(count, *k.shape[-2:])
    nothing = q.new_empty(1, 1, 1)  # beta=0: what is added is not read
    scores = torch.baddbmm(nothing, rows, columns.transpose(1, 2), beta=0, alpha=scale)
    scores = scores.view(*leading, q.shape[-2], k.shape[-2])
    return scores if bias is None else scores + bias


def mask_scores(scores: Tensor, mask: Tensor | None, fill: Fill | float = "zero", *, overwrite: bool = False) -> Tensor:
    """Put the fill where the mask is False. (..., Sq, Sk) -> (..., Sq, Sk); `overwrite` as in `attention_weights`."""
    if mask is None:
        return scores
    value = resolve_fill(fill, scores.dtype)[0]
    return scores.masked_fill_(~mask, value) if overwrite and _is_free(scores) else scores.masked_fill(~mask, value)


def softmax_weights(
    masked: Tensor, mask: Tensor | None, fill: Fill | float = "zero", *, overwrite: bool = False
) -> Tensor:
    """Take the softmax over the keys of masked scores, and zero the rows without an allowed key. Keeps the shape."""
    weights = torch.softmax(masked, -1, out=masked) if overwrite and _is_free(masked) else torch.softmax(masked, -1)
    if mask is not None and resolve_fill(fill, masked.dtype)[1]:
        # The fill is finite, so an empty row is uniform here, not NaN, and its gradient is an exact zero as well.
        has_key = mask.any(-1, keepdim=True)
        if not has_key.all():
            weights = weights.masked_fill(~has_key, 0.0)
    return weights


def _is_free(tensor: Tensor) -> bool:
    """Whether autograd allows to overwrite a tensor."""
    return not (torch.is_grad_enabled() and tensor.requires_grad)


def attention_weights(
    scores: Tensor, mask: Tensor | None = None, fill: Fill | float = "zero", *, overwrite: bool = False
) -> Tensor:
    """Turn scores into weights: fill, softmax over the keys, zero the rows without an allowed key.

    Args:
        scores: (..., Sq, Sk).
        mask: boolean, broadcastable to the scores, True = may attend; None allows all.
        fill: see `mha_core.masks.MaskSpec`.
        overwrite: let the result take the place of `scores` where autograd allows, to save one S x S matrix.

    Returns:
        (..., Sq, Sk); torch sums the softmax in float32 at least, whatever the dtype of the scores.
    """
    masked = mask_scores(scores, mask, fill, overwrite=overwrite)
    return softmax_weights(masked, mask, fill, overwrite=overwrite or masked is not scores)


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    fill: Fill | float = "zero",
) -> tuple[Tensor, Tensor]:
    """Attend: the equation, in reading order.

    Args:
        q: (..., Sq, D). k: (..., Sk, D). v: (..., Sk, Dv).
        mask: boolean, broadcastable to (..., Sq, Sk), True = may attend.
        scale: factor on q kᵀ; None means 1/sqrt(D).
        fill: what replaces a hidden score; see `mha_core.masks.MaskSpec`.

    Returns:
        Output (..., Sq, Dv) and weights (..., Sq, Sk).

    Raises:
        MhaError: lengths, widths, leading axes or the mask do not fit.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    check_qkv(q, k, v)
    if mask is not None:
        _check_mask_of(q, k, mask)
    scores = attention_scores(q, k, q.shape[-1] ** -0.5 if scale is None else scale)
    weights = attention_weights(scores, mask, fill)
    return torch.matmul(weights.to(v.dtype), v), weights


def _check_mask_of(q: Tensor, k: Tensor, mask: Tensor) -> None:
    leading = q.shape[:-2]
    if len(leading) > 2:
        raise MhaError("query", tuple(q.shape), "at most four axes when a mask is given: (B, H, Sq, D)")
    if mask.ndim > q.ndim:
        problem = f"a mask of shape {tuple(mask.shape)} has more axes than the query {tuple(q.shape)}"
        raise MhaError("mask", tuple(mask.shape), f"at most {q.ndim} axes", problem=problem)
    if len(leading) == 1:  # (N, Sq, D): the leading axis is what the first of three mask axes means
        check_mask(mask[:, None] if mask.ndim == 3 else mask, leading[0], 1, q.shape[-2], k.shape[-2])
    else:
        batch, heads = leading or (1, 1)
        check_mask(mask, batch, heads, q.shape[-2], k.shape[-2])


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse q, k, v that do not fit: torch's fused kernel on CPU does not check and can read outside the tensors.

    Raises:
        MhaError: fewer than two axes, or leading axes, widths or lengths differ.
    """
    for name, tensor in (("query", q), ("key", k), ("value", v)):
        if tensor.ndim < 2:
            raise MhaError(name, tuple(tensor.shape), "at least two axes: (..., S, D)")
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        problem = f"batch and heads of q, k and v must be equal: {shapes}; expand them yourself if you mean to share"
        raise MhaError("key", tuple(k.shape[:-2]), f"leading axes {tuple(q.shape[:-2])}", problem=problem)
    if q.shape[-1] != k.shape[-1]:
        raise MhaError("key", k.shape[-1], f"as wide as the query: {q.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        problem = f"there are {k.shape[-2]} keys but {v.shape[-2]} values; every key needs its value"
        raise MhaError("value", v.shape[-2], f"as long as the key: {k.shape[-2]}", problem=problem)


@dataclass(frozen=True)
class KernelCall:
    """What a kernel needs besides q, k, v and the mask.

    Attributes:
        scale: factor on q kᵀ.
        score_bias: added to the scaled scores, broadcastable to (B, H, Sq, Sk); None adds nothing.
        fill: what replaces a hidden score. dropout: share of the weights that is dropped. generator: its randomness.
        need_weights: whether the weights are wanted. tap: who looks on.
    """

    scale: float
    fill: Fill | float = "zero"
    dropout: float = 0.0
    generator: torch.Generator | None = None
    need_weights: bool = True
    tap: Tap = untapped
    score_bias: Tensor | None = None


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, KernelCall], tuple[Tensor, Tensor | None]]


def explicit_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: KernelCall
) -> tuple[Tensor, Tensor | None]:
    """Compute the whole S x S matrix. Returns context (B, H, Sq, D) and weights (B, H, Sq, Sk)."""
    scores = call.tap("scores", attention_scores(q, k, call.scale, call.score_bias))
    masked = scores if mask is None else call.tap("masked", mask_scores(scores, mask, call.fill, overwrite=True))
    weights = call.tap("weights", softmax_weights(masked, mask, call.fill, overwrite=True))
    if call.dropout:
        weights = call.tap("dropped", drop_weights(weights, call.dropout, call.generator))
    return torch.matmul(weights.to(v.dtype), v), weights


def _rows_of(per_query: Tensor | None, rows: slice) -> Tensor | None:
    """Take some query rows of a mask or bias (..., Sq or 1, Sk); one row for all queries stays."""
    return per_query if per_query is None or per_query.shape[-2] == 1 else per_query[..., rows, :]


def chunked_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: KernelCall
) -> tuple[Tensor, Tensor | None]:
    """Compute `CHUNK_ROWS` queries at a time, keeping the weights only when they are wanted."""
    contexts: list[Tensor] = []
    kept: list[Tensor] = []
    for first in range(0, max(q.shape[-2], 1), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        row_call = replace(call, score_bias=_rows_of(call.score_bias, rows))
        context, weights = explicit_kernel(q[..., rows, :], k, v, _rows_of(mask, rows), row_call)
        contexts.append(context)
        if call.need_weights and weights is not None:
            kept.append(weights)
        del weights  # or this chunk would still be there while the next one is computed
    return torch.cat(contexts, dim=-2), torch.cat(kept, dim=-2) if kept else None


def check_sdpa(fill: Fill | float, seeded_dropout: float) -> None:
    """Refuse what torch's fused kernel cannot do.

    Raises:
        MhaError: a fill other than "zero", or dropout that has to follow a seed.
    """
    if fill != "zero":
        try_ = [Suggestion.of(kernel="explicit"), Suggestion.of(fill="zero")]
        problem = f"torch's fused kernel fills hidden scores by itself and cannot use {fill}"
        raise MhaError("fill", fill, "zero with kernel sdpa", try_, problem=problem)
    if seeded_dropout:
        try_ = [Suggestion.of(kernel="explicit"), Suggestion.of(dropout=0.0)]
        problem = "torch's fused kernel draws dropout from the global generator, so a seed could not repeat it"
        raise MhaError("dropout", seeded_dropout, "0 with kernel sdpa and a seed", try_, problem=problem)


def _joined_mask(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Give the one matrix that the fused kernel takes: the bias, with -inf where the mask hides."""
    return mask if bias is None else bias if mask is None else bias.masked_fill(~mask, -torch.inf)


def sdpa_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: KernelCall) -> tuple[Tensor, Tensor | None]:
    """Call torch's fused `scaled_dot_product_attention`, which never gives the weights.

    Rows without an allowed key are shown every key and zeroed afterwards: what torch returns for them differs between
    its backends.

    Raises:
        MhaError: a fill other than "zero" (the fused softmax fills by itself), or dropout with a generator.
    """
    check_sdpa(call.fill, call.dropout if call.generator is not None else 0.0)
    empty_rows = None if mask is None else ~mask.any(-1, keepdim=True)
    if mask is not None and empty_rows is not None and empty_rows.any():
        mask = mask | empty_rows
    else:
        empty_rows = None
    mask = _joined_mask(mask, call.score_bias)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=call.dropout, scale=call.scale)
    return (context if empty_rows is None else context.masked_fill(empty_rows, 0.0)), None


KERNELS: dict[str, Kernel] = {"explicit": explicit_kernel, "chunked": chunked_kernel, "sdpa": sdpa_kernel}


def drop_weights(weights: Tensor, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """Drop weights with the given probability and scale the kept ones by 1 / (1 - p), as `torch.nn.Dropout`."""
    if not probability:
        return weights
    kept = torch.empty_like(weights).bernoulli_(1 - probability, generator=generator)
    return weights * kept / (1 - probability)


def share_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Repeat each key/value head for the query heads of its group. (B, Hkv, S, D) -> (B, H, S, D)."""
    groups = num_heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)
