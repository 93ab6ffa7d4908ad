"""Mistakes in which heads meet: key/value heads of grouped queries, and one small projection that all heads share."""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.operands import Sizes, chain, operands, reshape_place
from mha_core.doctor.traces.origins import Origin
from mha_core.doctor.traces.tracing import Trace

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)
REPEATS = ("repeat", "tile", "expand", "repeat_interleave", "expand_as", "broadcast_to")


def gqa_cause(trace: Trace, core: Core, *, batch: int, q_len: int, k_len: int, num_heads: int) -> Cause:
    """Name a repeat of key/value heads along the wrong axis, or in another order than the query heads need."""
    try:
        found = operands(trace, core, Sizes(batch, q_len, k_len, num_heads))
        for part, source in ((found.k, core.k_source), (found.v, core.v_source)):
            if part is None or found.q is None:
                continue
            steps = chain(trace, source)
            repeated = next((s.place for s, _ in steps[::-1] if s.name in REPEATS), None)
            place = repeated or reshape_place(steps)
            if repeated and part.token.shape[-2] > k_len and part.token.shape[-2] % k_len == 0 and _repeats(part):
                return "key/value heads were repeated along the tokens, not along the heads", place
            queries, keys = _ranks(found.q), _ranks(part)
            if queries is None or keys is None or queries.shape != keys.shape:
                continue
            many, few = int(queries.max()) + 1, int(keys.max()) + 1
            if few == 1 or few >= many or many % few:
                continue
            if not torch.equal(keys, queries // (many // few)):
                if torch.equal(keys, queries % few):
                    return "key/value heads are tiled: repeat where repeat_interleave is needed", place
                return "query heads meet key/value heads of another group", place
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
        pass
    return UNKNOWN


def _repeats(part: Origin) -> bool:
    token, channel = part.token.flatten(0, -3)[:, :, 0], part.channel.flatten(0, -3)[:, :, 0]
    same = (token[:, :, None] == token[:, None]) & (channel[:, :, None] == channel[:, None])
    return bool((same.sum(-1) > 1).all())


def _ranks(part: Origin) -> Tensor | None:
    """Number the heads of the first sample by their channels, slice by slice."""
    sample, channel = part.sample[..., 0, 0].reshape(-1), part.channel.min(-1).values[..., 0].reshape(-1)
    mine = channel[sample == 0]
    if mine.numel() == 0 or bool((mine < 0).any()):
        return None
    ranks: Tensor = torch.unique(mine, return_inverse=True)[1]
    return ranks


def shared_projection_cause(trace: Trace, core: Core, *, batch: int, q_len: int, k_len: int, num_heads: int) -> Cause:
    """Name a projection that every head shares because the input was cut into heads before it."""
    try:
        found = operands(trace, core, Sizes(batch, q_len, k_len, num_heads))
        if found.q is None or num_heads < 2:
            return UNKNOWN
        sample, channel = found.q.sample.flatten(0, -3), found.q.channel.flatten(0, -3)
        mine = channel[sample[:, 0, 0] == 0][:, 0]
        again = [c for c in cores(trace) if c.q.shape == core.q.shape and torch.equal(c.q, core.q)]
        if len(again) == num_heads and all(torch.equal(c.k, core.k) and torch.equal(c.v, core.v) for c in again):
            return "one head is computed again and again: all heads share its layers", core.scores_place
        if len(mine) >= num_heads and bool((mine >= 0).all()) and bool((mine == mine[:1]).all()):
            steps = chain(trace, core.q_source)
            width = steps[0][1].shape[-1] if steps else 0
            if width == core.q.shape[-1]:
                return "the input is cut into heads before the projection: all heads share one small matrix", steps[0][
                    0
                ].place
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
        pass
    return UNKNOWN
