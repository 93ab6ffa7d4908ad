"""What the look inside an attention finds wrong for reach: rows, heads, channels.

A finding each: rows of a head that hold other tokens, weights that no token moves, heads that are all the same, outputs
that are all the same, and heads that read a part of the channels through one small projection.

Axes: B batch, S tokens, H heads, D head_dim, E embed_dim.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import mask_mistake, split_mistake
from mha_core.doctor.causes.pointing import attention_line, projection_line
from mha_core.doctor.probes.head_rows import Mixing, channels_read, inner_rows, operand, output_mixing, watched
from mha_core.doctor.probes.influence import Look, Probe, mapped, redrawn
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core

BATCH = 2


def look_inside(subject: Subject, length: int) -> CheckResult | None:
    """Look at the rows of every head, at the join, and at the channels heads read."""
    if length < 3:
        return None
    inputs, probe = subject.inputs(BATCH, length), Probe(subject)
    base, mixings = inner_rows(probe, inputs)
    look, leaves = base, inputs
    joined = None
    try:
        look, leaves = watched(probe, inputs)
        joined = output_mixing(look)
    except ModuleFailure:  # it does not work with gradients: another check's finding
        pass
    found = [*mixings, *([joined] if joined is not None else [])]
    wrong = next((mixing for mixing in found if not mixing.deliberate), None)
    if wrong is not None:
        return _scrambled(subject, base, wrong, length)
    for finding in (_deaf(probe, inputs, base), _twins(base, length), _one_output(subject, base)):
        if finding is not None:
            return finding
    narrow = _narrow(subject, probe, look, leaves)
    if narrow is not None:
        return narrow
    if mixings:
        offsets = sorted({offset for mixing in mixings for offset in mixing.offsets})
        reason = f"the {mixings[0].of} of a token is mixed with {len(offsets) - 1} others before it is compared, alike "
        return CheckResult("reach", "by_design", reason + "around every token", {"offsets_tokens": offsets})
    return None


def _weights(core: Core, length: int) -> Tensor | None:
    """Give the weights of sample 0, (heads, S, S); None where they do not lie so."""
    weights = core.weights.detach()
    if weights.dim() < 3 or weights.shape[-2:] != (length, length) or weights[..., 0, 0].numel() % BATCH:
        return None
    return weights.reshape(BATCH, -1, length, length)[0].nan_to_num()


def _deaf(probe: Probe, inputs: Inputs, base: Look) -> CheckResult | None:
    """Find weights that are the same whatever the tokens are."""
    length = inputs.query.shape[1]
    other = probe.look(redrawn(inputs))
    if not base.cores or len(other.cores) != len(base.cores):
        return None
    weights, again = _weights(base.cores[0], length), _weights(other.cores[0], length)
    if weights is None or again is None or bool((weights != again).any()):
        return None
    cause, where = mask_mistake(base)
    reason = (
        f"weights are the same whatever the {length} tokens are: scores have no say, at most {float(weights.max()):.3g}"
    )
    evidence = {"tokens": length, "largest_weight": float(weights.max())}
    where = where or attention_line(base)
    return CheckResult("reach", "fail", reason, evidence, cause or "scores are drowned by what is added", where)


def _twins(base: Look, length: int) -> CheckResult | None:
    """Find heads that all compute the same weights."""
    maps = [weights for core in base.cores if (weights := _weights(core, length)) is not None]
    if len(maps) != len(base.cores) or not maps:
        return None
    heads = torch.cat(maps) if len(maps) > 1 else maps[0]
    if heads.shape[0] < 2 or not bool((heads - heads[:1]).abs().max() < 1e-6):
        return None
    reason = (
        f"all {heads.shape[0]} heads compute the same weights: they share one projection of the query and of the key"
    )
    where = projection_line(base, "query")
    return CheckResult("reach", "fail", reason, {"heads": heads.shape[0]}, "all heads are one head", where)


def _one_output(subject: Subject, base: Look) -> CheckResult | None:
    """Find outputs that are the same for every query of a sample."""
    output = base.answer.output.detach()
    spread = float((output - output[:, :1]).abs().max()) / max(float(output.abs().max()), 1e-30)
    if spread > 1e-6 or subject.expects_causal:
        return None
    reason = (
        f"all {output.shape[1]} outputs of a sample are the same, although its tokens are not: the query has no say"
    )
    cause = "weights do not meet the values they belong to"
    evidence = {"tokens": output.shape[1], "relative_difference": spread}
    return CheckResult("reach", "fail", reason, evidence, cause, attention_line(base))


def _scrambled(subject: Subject, look: Look, mixing: Mixing, length: int) -> CheckResult:
    cause, where = split_mistake(subject, look, BATCH, length)
    if mixing.of == "output":
        reason = f"output {mixing.row} is made of head rows that belong to query {mixing.token}, of {length} tokens"
        cause = cause or "heads were joined without undoing the transpose"
    else:
        reason = f"row {mixing.row} of a head's {mixing.of} holds token {mixing.token}, of {length} tokens"
        cause = cause or "heads were split without a transpose"
    where = where or attention_line(look)
    evidence = {"tokens": length, "batch_and_head_index": mixing.head, "row": mixing.row, "token": mixing.token}
    return CheckResult("reach", "fail", reason, evidence, cause, where)


def _narrow(subject: Subject, probe: Probe, look: Look, leaves: Inputs) -> CheckResult | None:
    """Judge heads that read a part of the channels: one small projection shared by all heads, or one each."""
    count = sum(parameter.numel() for parameter in subject.module.parameters())
    if subject.takes == "heads" or not count:
        return None
    read = {name: pair for name, pair in channels_read(look, leaves).items() if pair[0] * 2 <= pair[1]}
    if not read:
        return None
    name, (seen, width) = next(iter(read.items()))
    full = 4 * subject.embed_dim**2
    evidence = {"channels_read": seen, "channels": width, "parameters": count, "parameters_of_4_E_E": full}
    if _is_shared(probe, look, leaves, seen):
        reason = (
            f"a head's {name} reads {seen} of {width} channels, by a projection all heads share, {count} parameters"
        )
        cause = "the input is split into heads before the projection"
        where = split_mistake(subject, look, BATCH, leaves.query.shape[1])[1] or projection_line(look, name)
        return CheckResult("reach", "fail", f"{reason} instead of about 4*E*E = {full}", evidence, cause, where)
    reason = f"a head's {name} reads {seen} of {width} channels of a token, with a projection of its own"
    return CheckResult("reach", "warn", reason, evidence, "", projection_line(look, name))


def _is_shared(probe: Probe, look: Look, leaves: Inputs, seen: int) -> bool:
    """Tell whether heads that are given equal channels compute equal queries, keys or values."""
    if leaves.query.shape[-1] % seen:
        return False
    repeated = mapped(leaves, partial(_repeated, width=seen))
    core = next(iter(probe.look(repeated).cores), None)
    if core is None:
        return False
    for name in ("query", "key", "value"):
        rows = operand(core, name)
        heads = rows.reshape(BATCH, -1, *rows.shape[-2:]) if rows.shape[0] in (BATCH, rows[..., 0, 0].numel()) else rows
        if (
            heads.dim() > 2
            and heads.shape[1] > 1
            and bool(torch.allclose(heads[:, :1].expand_as(heads), heads, atol=1e-5))
        ):
            return True
    return False


def _repeated(tensor: Tensor, width: int) -> Tensor:
    tensor = tensor.detach()
    return tensor[..., :width].repeat(*(1,) * (tensor.dim() - 1), tensor.shape[-1] // width)
