"""Mistakes of splitting and joining heads, seen in where the elements of queries, keys, values and output came from."""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.definitions import LAYER, defined
from mha_core.doctor.traces.operands import RESHAPES, Operands, Sizes, chain, joined, operands, reshape_place
from mha_core.doctor.traces.origins import Origin, Origins, unpacked
from mha_core.doctor.traces.products import product
from mha_core.doctor.traces.tracing import Step, Trace

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)
SPLIT = "heads were split with view without a transpose: one head's rows mix the tokens"
OVER_HEADS = "attention runs over the heads, not over the tokens: a transpose is missing"
OVER_BATCH = "attention runs over the batch, not over the tokens: batch and sequence axes are swapped"
TORN = "one head's vectors hold channels of different tokens: the axes were cut with view, not moved with a transpose"
MIXED_SAMPLES = "one head's rows come from different samples: batch and sequence axes are swapped or folded together"
FOLDED = "batch and heads were folded in the wrong order: queries meet keys or values of another sample"
UNFOLDED = "batch and heads are unfolded in another order than they were folded: samples are mixed"
JOINED = "heads were joined without a transpose back: one output row mixes the tokens"
MOVED = "the joined rows are not in the order of the tokens: a transpose is missing where heads are joined"


def split_cause(trace: Trace, core: Core, *, batch: int, q_len: int, k_len: int, num_heads: int) -> Cause:
    """Name the mistake in how heads are split, folded or joined, with the line that makes it."""
    sizes = Sizes(batch, q_len, k_len, num_heads)
    try:
        found = operands(trace, core, sizes)
        for reader in (_split, _folded, _joined):
            cause = reader(trace, core, sizes, found)
            if cause[0]:
                return cause
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
        pass  # a trace that cannot be read says nothing
    return UNKNOWN


def einsum_cause(trace: Trace) -> Cause:
    """Name an einsum that sums one operand alone over an axis, as a mistyped letter does."""
    for step in trace.steps:
        if step.name != "einsum" or not isinstance(step.args[0], str) or len(step.inputs) != 2:
            continue
        terms, arrow, out = step.args[0].replace(" ", "").partition("->")
        first, second = terms.split(",")
        alone = [n for n in first + second if arrow and n not in out and (n not in first or n not in second)]
        if [n for n in alone if n.isalpha()]:
            return (
                f"einsum sums over {' and '.join(dict.fromkeys(alone))} in one operand alone: a letter is wrong",
                step.place,
            )
    return UNKNOWN


def _split(trace: Trace, core: Core, sizes: Sizes, found: Operands) -> Cause:
    parts = (
        ("queries", found.q, core.q_source, sizes.q_len),
        ("keys", found.k, core.k_source, sizes.k_len),
        ("values", found.v, core.v_source, sizes.k_len),
    )
    for name, origin, source, length in parts:
        if origin is None or bool((origin.token < 0).all()):
            continue
        steps = chain(trace, source)
        if name != "queries" and _has_query_length(origin, sizes):
            return f"{name} are viewed with the length of the queries: their heads absorb the difference", _line(steps)
        problem = _rows(origin, length)
        if problem == SPLIT and name == "queries" and _grouped_as_rows(found, length):
            continue  # the query heads of a group lie among the rows, against one key head
        if problem:
            place = _culprit(found.origins, steps) or core.scores_place
            return problem, defined(trace, place, LAYER) if problem == OVER_BATCH else place
    return UNKNOWN


def _has_query_length(origin: Origin, sizes: Sizes) -> bool:
    """Whether keys have as many rows as there are queries, each made of more than its own token."""
    rows = origin.token.shape[-2]
    return sizes.q_len != sizes.k_len and rows == sizes.q_len and int(origin.token.max()) >= rows


def _rows(origin: Origin, length: int) -> str:
    """Judge the rows (..., L, D) of one operand, head by head."""
    token, sample, channel = (t.flatten(0, -3) if t.dim() > 2 else t[None] for t in _three(origin))
    known = token >= 0
    if not bool(known.all()):
        whole = known.flatten(1).all(-1)
        if not bool(whole.any()):
            return ""
        token, sample, channel = token[whole], sample[whole], channel[whole]
    if bool((sample != sample[..., :1]).any()):
        return MIXED_SAMPLES
    if bool((token != token[..., :1]).any()):
        return TORN
    token, sample, channel = token[..., 0], sample[..., 0], channel.min(-1).values
    if token.shape[1] < 2 or length < 2:
        return ""
    same_token = (token == token[:, :1]).all(-1)
    same_sample = (sample == sample[:, :1]).all(-1)
    if bool(same_token.all()):
        if not bool(same_sample.any()):
            return OVER_BATCH
        return OVER_HEADS if bool((channel != channel[:, :1]).any()) else ""
    if not bool(same_sample.all()):
        return MIXED_SAMPLES
    return SPLIT if _token_twice(token, channel) else ""


def _three(origin: Origin) -> tuple[Tensor, Tensor, Tensor]:
    return origin.token, origin.sample, origin.channel


def _token_twice(token: Tensor, channel: Tensor) -> bool:
    """Whether a token appears twice among the rows of one head, with different channels."""
    same = (token[:, :, None] == token[:, None]) & (channel[:, :, None] != channel[:, None])
    return bool(same.any())


def _grouped_as_rows(found: Operands, length: int) -> bool:
    """Whether there are several rows per query, and keys and values are in order."""
    if found.q is None or found.k is None or found.v is None:
        return False
    rows = found.q.token.shape[-2]
    return rows > length and rows % length == 0 and not any(_rows(part, 2) for part in (found.k, found.v))


def _line(steps: list[tuple[Step, Tensor]]) -> Place | None:
    return reshape_place(steps)


def _culprit(origins: Origins, steps: list[tuple[Step, Tensor]]) -> Place | None:
    """Find the first step whose rows mix tokens; the first reshape where none does by itself."""
    for step, given in steps[1:] if len(steps) > 1 else steps:
        numbers = origins.of(given, step.index + 1)
        if numbers is None or numbers.dim() < 3 or step.name not in RESHAPES:
            continue
        problem = _rows(unpacked(numbers), 2)
        if problem in (SPLIT, TORN, MIXED_SAMPLES) and step.place is not None:
            return step.place
    return reshape_place(steps)


def _folded(trace: Trace, core: Core, sizes: Sizes, found: Operands) -> Cause:
    """Compare the samples of queries, keys and values that meet in one product."""
    if sizes.batch < 2 or found.q is None:
        return UNKNOWN
    first = found.q.sample[..., 0, 0]
    for other, source in ((found.k, core.k_source), (found.v, core.v_source)):
        if other is None or other.sample.dim() != found.q.sample.dim():
            continue
        second = other.sample[..., 0, 0]
        if bool(((first != second) & (first >= 0) & (second >= 0)).any()):
            return FOLDED, _last_fold(chain(trace, source)) or core.scores_place
    return UNKNOWN


def _last_fold(steps: list[tuple[Step, Tensor]]) -> Place | None:
    moved = [step.place for step, _ in steps if step.name in (*RESHAPES, "cat", "repeat", "repeat_interleave")]
    return moved[-1] if moved else reshape_place(steps)


def _joined(trace: Trace, core: Core, sizes: Sizes, found: Operands) -> Cause:
    steps, projection = joined(trace, core)
    last, tensor = steps[-1]
    numbers = found.origins.of(tensor, last.index + 1)
    if numbers is None or bool((numbers < 0).any()):
        return UNKNOWN
    rows, channels = _rows_first(trace, numbers, projection)
    origin = unpacked(rows)
    if bool((origin.sample != origin.sample[..., :1]).any()):
        return UNFOLDED, _first_torn(found.origins, steps) or core.values_place
    if bool((origin.token != origin.token[..., :1]).any()):
        return JOINED, _first_torn(found.origins, steps) or core.values_place
    if channels == rows.dim() or rows.dim() > 3:
        return UNKNOWN
    problem = _out_of_order(origin.sample[..., 0], origin.token[..., 0], sizes)
    return (problem, reshape_place(steps[1:]) or core.values_place) if problem else UNKNOWN


def _rows_first(trace: Trace, numbers: Tensor, projection: Step | None) -> tuple[Tensor, int]:
    """Bring the channels that the output projection sums over to the last axis."""
    if projection is not None and projection.name in ("conv1d", "conv2d"):
        return numbers.movedim(1, -1), 1
    multiplied = product(trace, projection) if projection is not None else None
    if multiplied is None or multiplied.left.numel() != numbers.numel():
        return numbers, 1
    labels = multiplied.left_labels
    numbers = numbers.reshape(multiplied.left.shape)
    inner = [labels.index(n) for n in multiplied.contracted]
    rest = [i for i in range(len(labels)) if i not in inner]
    return numbers.permute(*rest, *inner).flatten(len(rest)), len(inner)


def _out_of_order(sample: Tensor, token: Tensor, sizes: Sizes) -> str:
    """Whether rows lie where their samples and tokens say, whichever of both comes first."""
    batch, length = sizes.batch, sizes.q_len
    b, s = torch.arange(batch), torch.arange(length)
    orders = [(b[:, None].expand(batch, length), s.expand(batch, length))]
    orders.append((b.expand(length, batch), s[:, None].expand(length, batch)))
    if sample.dim() == 1:
        orders = [(first.reshape(-1), second.reshape(-1)) for first, second in orders]
    orders = [pair for pair in orders if pair[0].shape == sample.shape]
    if not orders or any(torch.equal(sample, pair[0]) and torch.equal(token, pair[1]) for pair in orders):
        return ""
    if sorted(token.reshape(-1).tolist()) != sorted(orders[0][1].reshape(-1).tolist()):
        return ""
    if not any(torch.equal(sample, pair[0]) for pair in orders):
        return UNFOLDED
    by_sample = (
        token
        if sample.dim() == 2 and bool((sample == sample[:, :1]).all())
        else token.mT
        if token.dim() == 2
        else token
    )
    alike = by_sample.dim() < 2 or bool((by_sample == by_sample[:1]).all())  # a roll or a flip, the same for all
    return "" if alike else MOVED


def _first_torn(origins: Origins, steps: list[tuple[Step, Tensor]]) -> Place | None:
    """Find the first step after the values' product that lays different tokens or samples into one row."""
    for step, given in steps[1:]:
        numbers = origins.of(given, step.index + 1)
        if numbers is None or step.name not in RESHAPES:
            continue
        origin = unpacked(numbers)
        if any(bool((part != part[..., :1]).any()) for part in (origin.sample, origin.token)):
            return step.place
    return reshape_place(steps[1:])
