"""Other counts beside ours: the seed article's estimate, Kaplan's table, and what torch's own counter reports.

The counter runs at the experiment's own size without computing anything, on fake tensors (`FakeTensorMode`): it counts
operations by their shapes, and reports the same on them as on real ones (tested). Masks move no product, so none is
given. On CPU the counter has no entry for the fused kernel and none for the fast path of `nn.MultiheadAttention`, so
what it reports there is not what is computed (pytorch issue 195460).

Letters: B batch, Sq queries, Sk keys, E embed_dim, H heads, D head_dim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig, Kernel
from mha_core.layouts import AttentionWeights
from mha_core.lenses.cost import Cost

_ONE_AT_A_TIME = threading.Lock()  # fake tensors keep one cache for the whole process, which `truth` empties


@dataclass(frozen=True)
class Count:
    """One count of the layer's matmul FLOPs.

    Attributes:
        name: who counts what.
        forward, backward: FLOPs; None where that is not counted.
        agrees: whether forward, and backward where counted, equal the closed form.
        why: one sentence.
    """

    name: str
    forward: int | None
    backward: int | None
    agrees: bool
    why: str


def seed_estimate(batch: int, seq_len: int, embed_dim: int, num_heads: int) -> int:
    """Estimate the FLOPs as the seed article's `count_flops` does: projections and q kᵀ; weights · v is left out."""
    projections = 2 * batch * seq_len * embed_dim**2 * (3 + 1)
    return projections + 2 * batch * num_heads * seq_len**2 * (embed_dim // num_heads)


def kaplan_estimate(batch: int, seq_len: int, embed_dim: int, joined_dim: int) -> int:
    """Count as Kaplan et al. 2020, table 1, where d_attn is H·D: 2·E·(3 + 1)·H·D for the projections and 2·S·H·D for
    attention, per token."""
    return batch * seq_len * (2 * embed_dim * 4 * joined_dim + 2 * seq_len * joined_dim)


def truth(cost: Cost) -> tuple[Count, ...]:
    """Put every count beside the closed form.

    Args:
        cost: of an experiment of any size.

    Returns:
        The closed form first; one sentence each.
    """
    closed = cost.totals["matmul_flops"], cost.totals["backward_matmul_flops"]
    own = Count("closed form", *closed, True, "Every product, over the full square of scores.")
    with _ONE_AT_A_TIME:
        try:
            return (own, *_estimates(cost), *_counted(cost, closed))
        finally:
            FakeTensorMode.cache_clear()


def _estimates(cost: Cost) -> tuple[Count, ...]:
    config, sizes = cost.config, cost.sizes
    is_plain = (
        sizes.q_len == sizes.k_len
        and config.kv_heads == config.num_heads
        and {config.key_dim, config.value_dim} == {config.embed_dim}
    )
    names = "seed article, count_flops", "Kaplan et al. 2020, table 1"
    if not is_plain:
        why = "It knows one length, one width and no shared heads, so it does not speak of this layer."
        return tuple(Count(name, None, None, False, why) for name in names)
    seed, why = None, "It knows only heads of E / H channels, so it does not speak of this layer."
    if config.joined_dim == config.embed_dim:
        seed = seed_estimate(sizes.batch, sizes.q_len, config.embed_dim, config.num_heads)
        why = "The tutorial this project grew from leaves out weights·V, 2·B·H·S²·D FLOPs, and the backward."
    kaplan = kaplan_estimate(sizes.batch, sizes.q_len, config.embed_dim, config.joined_dim)
    half = "It counts attention as 2·S·H·D per token, half of what the two full products take: the causal half."
    return Count(names[0], seed, None, False, why), Count(names[1], kaplan, 2 * kaplan, False, half)


def _counted(cost: Cost, closed: tuple[int, int]) -> tuple[Count, ...]:
    """What the counter reports, for our kernels and for torch's module."""
    lacks = (
        "The counter has no entry for the fused kernel on CPU and reports 0 for q·kᵀ and weights·V; "
        "sdpa_kernel(SDPBackend.MATH) would show them to it."
    )
    found = [
        _compare("counter, explicit kernel", closed, _count_layer(cost, "explicit"), "It sees every product."),
        _compare("counter, fused kernel (SDPA)", closed, _count_layer(cost, "sdpa"), lacks),
    ]
    lack = ""
    if cost.config.kv_heads != cost.config.num_heads:
        lack = "It has no shared key/value heads, so it cannot be this layer."
    elif cost.config.joined_dim != cost.config.embed_dim:
        lack = "Its heads always have E / H channels, so it cannot be this layer."
    if lack:
        return (*found, Count("counter, nn.MultiheadAttention", None, None, False, lack))
    for need_weights, why in (
        (True, "It forms the weights with plain products, which the counter sees."),
        (False, "It calls the fused kernel, whose two products are reported as 0."),
    ):
        name = f"counter, nn.MultiheadAttention, need_weights={need_weights}"
        found.append(_compare(name, closed, _count_module(cost, need_weights), why))
    fast = _count_fast_path(cost)
    why = (
        "In evaluation without gradients the module takes a fast path that the counter does not see at all."
        if fast == 0
        else "The fast path is not taken here: it needs self-attention, an even number of heads and a bias."
    )
    return (*found, Count("counter, nn.MultiheadAttention, eval and no_grad", fast, None, fast == closed[0], why))


def _compare(name: str, closed: tuple[int, int], counts: tuple[int, int], why: str) -> Count:
    return Count(name, *counts, counts == closed, why)


def count(
    forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, input_gradient: bool = True
) -> tuple[int, int]:
    """Count a function's products, forward and backward, with torch's counter (2 FLOPs per multiply-add)."""
    leaves = {id(tensor): tensor.detach().requires_grad_(input_gradient) for tensor in inputs}
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        output = forward(*(leaves[id(tensor)] for tensor in inputs))
        seen: int = counter.get_total_flops()
        torch.autograd.backward(output.sum())
        return seen, counter.get_total_flops() - seen


def _inputs(cost: Cost) -> tuple[Tensor, ...]:
    """Query, key and value of the layer's sizes; one tensor where they can be the same."""
    config, sizes = cost.config, cost.sizes
    query = torch.zeros(sizes.batch, sizes.q_len, config.embed_dim)
    if sizes.q_len == sizes.k_len and {config.key_dim, config.value_dim} == {config.embed_dim}:
        return query, query, query
    key = torch.zeros(sizes.batch, sizes.k_len, config.key_dim)
    return query, key, torch.zeros(sizes.batch, sizes.k_len, config.value_dim)


def empty_weights(config: AttentionConfig) -> AttentionWeights:
    """Give weights of the right shapes, all zero; their values move no count."""
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    q, k = torch.zeros(rows, config.embed_dim), torch.zeros(kv_rows, config.key_dim)
    v, out = torch.zeros(kv_rows, config.value_dim), torch.zeros(config.embed_dim, rows)
    biases = [torch.zeros(len(matrix)) if config.bias else None for matrix in (q, k, v, out)]
    return AttentionWeights(q, k, v, out, *biases)


def _count_layer(cost: Cost, kernel: Kernel) -> tuple[int, int]:
    config = replace(cost.config, kernel=kernel, dropout=0.0)
    with FakeTensorMode():
        layer = MultiHeadAttention.from_config(config, empty_weights(config))
        return count(lambda *inputs: layer(*inputs)[0], _inputs(cost), input_gradient=cost.input_gradient)


def _module(config: AttentionConfig) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(
        config.embed_dim, config.num_heads, bias=config.bias, kdim=config.kdim, vdim=config.vdim, batch_first=True
    )


def _count_module(cost: Cost, need_weights: bool) -> tuple[int, int]:
    with FakeTensorMode():
        module = _module(cost.config)

        def forward(*inputs: Tensor) -> Tensor:
            output: Tensor = module(*inputs, need_weights=need_weights)[0]
            return output

        return count(forward, _inputs(cost), input_gradient=cost.input_gradient)


def _count_fast_path(cost: Cost) -> int:
    with FakeTensorMode(), torch.no_grad():
        module, inputs = _module(cost.config).eval(), _inputs(cost)
        with FlopCounterMode(display=False) as counter:
            module(*inputs, need_weights=False)
        seen: int = counter.get_total_flops()
        return seen
