"""A look inside one attention: whether row i of every head belongs to token i, before the scores and after them.

Outputs alone cannot tell: heads that were split without a transpose and joined with one reach every token through the
output projection, although no head ever compared what it should. So tokens are replaced and the rows of q, k and v
that move are read (`inner_rows`), and each output is traced back to the rows of q it came from (`output_mixing`).

Axes: N everything before the last two axes of q (batch and heads, in whatever order), S tokens, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.doctor.probes.influence import NOISE, Look, Part, Probe, key_part, mapped, movement, redrawn, replaced
from mha_core.doctor.subject import Inputs, ModuleFailure
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.walk import makers

HEADS_LOOKED_AT = 3
SIDES = ("query", "key", "value")


@dataclass(frozen=True)
class Mixing:
    """Rows that hold more than their own token.

    Attributes:
        of: "query", "key", "value" or "output".
        row, token: the smallest example: row `row` of head `head` moves with token `token`.
        deliberate: the same offsets around every token, as a convolution has them.
        offsets: how far from their own place tokens are heard.
    """

    of: str
    head: int
    row: int
    token: int
    deliberate: bool
    offsets: tuple[int, ...]


def inner_rows(probe: Probe, inputs: Inputs) -> tuple[Look, list[Mixing]]:
    """Find rows of q, k and v that move with another token than their own, in the first attention of the module.

    Looked at are tensors whose rows are as many as the tokens: the others are no rows of tokens (windows, pooling).
    """
    base = probe.look(inputs)
    found, looks = [], dict[Part, list[Look]]()
    for index in _first_level(probe, base):
        for name in SIDES:
            part = _part(name, inputs)
            length = inputs.query.shape[1] if part in ("tokens", "query") else inputs.key.shape[1]
            if operand(base.cores[index], name).shape[-2:-1] != (length,):
                continue
            if part not in looks:
                other = redrawn(inputs)
                looks[part] = [probe.look(replaced(inputs, other, part, 0, token)) for token in range(length)]
            mixing = _mixing(name, _row_sources(base, looks[part], index, name))
            if mixing is not None:
                found.append(mixing)
    return base, found


def _first_level(probe: Probe, look: Look) -> range:
    """Which attentions see tokens as they came: the first, or all when every head is a module of its own."""
    apart = len(look.cores) > 1 and len(look.cores) == probe.subject.num_heads
    return range(len(look.cores) if apart else min(1, len(look.cores)))


def _part(name: str, inputs: Inputs) -> Part:
    """Say what to replace to reach one side: one tensor may be several of them."""
    if key_part(inputs) == "tokens":
        return "tokens"
    if name == "query":
        return "query"
    return "memory" if inputs.value is inputs.key else "key" if name == "key" else "value"


def _row_sources(base: Look, looks: list[Look], index: int, name: str) -> Tensor | None:
    """Give which rows of one operand move with which token of sample 0: (tokens, N, S)."""
    before, moved = operand(base.cores[index], name), []
    for look in looks:
        if len(look.cores) != len(base.cores) or operand(look.cores[index], name).shape != before.shape:
            return None
        moved.append(movement(_by_rows(before), _by_rows(operand(look.cores[index], name))) > NOISE)
    return torch.stack(moved)


def operand(core: Core, name: str) -> Tensor:
    """Give q, k or v by the name of its side."""
    return {"query": core.q, "key": core.k, "value": core.v}[name].detach()


def _by_rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])  # (..., S, D) -> (N, S, D)


def _mixing(name: str, moved: Tensor | None) -> Mixing | None:
    """Find the smallest example of a row that moves with a foreign token. moved: (tokens, N, S)."""
    if moved is None:
        return None
    length = moved.shape[0]
    extra = moved & ~torch.eye(length, dtype=torch.bool)[:, None, :]
    if not bool(extra.any()):
        return None
    token, head, row = (int(i) for i in extra.nonzero()[0])
    places = moved.nonzero()
    offsets = tuple(sorted({int(i) for i in (places[:, 2] - places[:, 0]).tolist()}))
    return Mixing(name, head, row, token, all(_is_shift(moved[:, n]) for n in range(moved.shape[1])), offsets)


def _is_shift(moved: Tensor) -> bool:
    """Tell whether every token is heard at the same offsets, as far as the ends allow. moved: (S, S)."""
    length = moved.shape[0]
    for offset in range(1 - length, length):
        diagonal = moved.diagonal(offset)
        if bool(diagonal.any()) and not bool(diagonal.all()):
            return False
    return True


def watched(probe: Probe, inputs: Inputs) -> tuple[Look, Inputs]:
    """Watch a call with gradients on, with inputs that take gradients where the module allows it."""
    leaves = mapped(inputs, lambda tensor: tensor.detach().clone().requires_grad_())
    try:
        return probe.look(leaves, grad=True), leaves
    except ModuleFailure:  # it writes into its input
        return probe.look(inputs, grad=True), inputs


def output_mixing(look: Look) -> Mixing | None:
    """Find an output of sample 0 that is made of another query's row, where no attention follows another."""
    if not _side_by_side(look):
        return None
    found = (_output_mixing(look, core) for core in look.cores)
    return next((mixing for mixing in found if mixing is not None), None)


def _side_by_side(look: Look) -> bool:
    """Tell whether no attention reads what another gave, as heads that are modules of their own."""
    softmaxes = {core.softmax_step.index for core in look.cores if core.softmax_step is not None}
    for core in look.cores[1:]:
        for source in (core.q_source, core.k_source, core.v_source):
            if source is None or any(step.index in softmaxes for step in makers(look.trace, source[0])):
                return False
    return True


def _output_mixing(look: Look, core: Core) -> Mixing | None:
    output = look.answer.output
    length = output.shape[1]
    q = _in_graph(core, "query", length)
    if q is None or not output.requires_grad:
        return None
    sources = []
    for row in range(length):
        gradient = _gradient(output[0, row], q)
        if gradient is None:
            return None
        sources.append(_by_rows(_rows_last(gradient, length)).abs().amax(-1) > 0)
    by_query = torch.stack(sources).permute(2, 1, 0)  # (outputs, N, queries) -> (queries, N, outputs)
    return _mixing("output", by_query)


def _in_graph(core: Core, name: str, length: int) -> Tensor | None:
    """Give the operand of the products that autograd knows, in whatever order of axes; None where it is not rows."""
    source = {"query": core.q_source, "key": core.k_source, "value": core.v_source}[name]
    if operand(core, name).shape[-2] != length or source is None or not source[0].requires_grad:
        return None
    return source[0] if length in source[0].shape else None


def _rows_last(tensor: Tensor, length: int) -> Tensor:
    """Put the axis of the tokens where rows are: (..., S, ...) -> (..., S, D)."""
    axes = [axis for axis, size in enumerate(tensor.shape) if size == length]
    axis = axes[0] if len(axes) == 1 else tensor.dim() - 2 if tensor.dim() - 2 in axes else axes[-1]
    if axis == tensor.dim() - 1:
        return tensor.transpose(-1, -2)
    return tensor.movedim(axis, -2)


def _gradient(of: Tensor, to: Tensor) -> Tensor | None:
    weights = torch.randn(of.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(of.dtype)
    try:
        (gradient,) = torch.autograd.grad((of * weights).sum(), to, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return None
    return gradient if gradient is None or bool(gradient.isfinite().all()) else None


def channels_read(look: Look, inputs: Inputs) -> dict[str, tuple[int, int]]:
    """Count the channels that a head's query, key and value read: {"query": (fewest of the heads, width)}."""
    found: dict[str, tuple[int, int]] = {}
    sources = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    for name, source in sources.items():
        if not look.cores or not source.requires_grad:
            continue
        rows = _in_graph(look.cores[0], name, source.shape[1])
        if rows is None or rows.dim() < 3:
            continue
        heads = _by_rows(_rows_last(rows, source.shape[1]))[:HEADS_LOOKED_AT]
        counts = [_channels(head[0], source) for head in heads]
        seen = [count for count in counts if count]
        if seen:
            found[name] = (min(seen), source.shape[-1])
    return found


def _channels(row: Tensor, source: Tensor) -> int:
    gradient = _gradient(row, source)
    return 0 if gradient is None else int((gradient.flatten(0, 1) != 0).any(0).sum())


def scrambled(probe: Probe, inputs: Inputs) -> tuple[bool, Mixing | None]:
    """Look for rows that hold other tokens without design: (whether there was anything to look at, what was found)."""
    base, found = inner_rows(probe, inputs)
    try:
        joined = output_mixing(watched(probe, inputs)[0])
    except ModuleFailure:  # it does not work with gradients: another check's finding
        joined = None
    wrong = [mixing for mixing in (*found, joined) if mixing is not None and not mixing.deliberate]
    length = inputs.query.shape[1]
    readable = bool(base.cores) and base.cores[0].q.dim() > 1 and base.cores[0].q.shape[-2] == length
    return readable, wrong[0] if wrong else None
