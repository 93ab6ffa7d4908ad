"""With fewer key/value heads than query heads: which key/value head serves which query head?

Trained grouped-query weights expect neighbours to share: query head h reads key/value head h // (H / Hkv) (Ainslie et
al. 2023). The heads are told apart by the rows of the projections that a gradient reaches, so it does not matter how
the module repeats or folds them. Axes: H query heads, Hkv key/value heads, S tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.probes.uses import Use, look, probe_sizes
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Subject
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.tracing import Trace

Map = tuple[int, ...]


@dataclass(frozen=True)
class _Mapping:
    """Which key and value head each query head reads, by the order of their rows in the projections."""

    keys: Map
    values: Map


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("gqa", status, reason, evidence, cause, where)


Sides = list[tuple[Tensor, Tensor]]  # for each matrix, which rows and which columns a gradient reaches


def _sides(tensor: Tensor, matrices: Sequence[Tensor]) -> Sides:
    """Find what a gradient from a tensor reaches."""
    grads = torch.autograd.grad(tensor.sum(), matrices, retain_graph=True, allow_unused=True)
    reached = []
    for matrix, grad in zip(matrices, grads, strict=True):
        flat = torch.zeros_like(matrix).flatten(1) if grad is None else grad.flatten(1)
        reached.append(((flat != 0).any(1), (flat != 0).any(0)))
    return reached


def _head(element: Sides, source: Sides, heads: int) -> int | None:
    """Find the head that an element of the context reads, by the output channels of the projection it depends on.

    Args:
        element: what the element reaches. source: what the whole of the queries (keys, values) reaches.
        heads: into how many equal parts the channels are cut.
    """
    before, found = 0, None
    for (rows, columns), (all_rows, all_columns) in zip(element, source, strict=True):
        if not bool(all_rows.any()):
            continue
        transposed = bool(all_rows.all()) and (not bool(all_columns.all()) or bool(rows.all()))  # as GPT-2's Conv1D
        hit, channels = (columns, all_columns) if transposed and len(all_rows) > heads else (rows, all_rows)
        place = (hit & channels)[channels].nonzero()
        if found is None and len(place):
            found = before + int(place[0])
        before += int(channels.sum())
    return None if found is None or before % heads else found // (before // heads)


def _mapping(core: Core, module: nn.Module, heads: int, kv_heads: int) -> _Mapping | None:
    """Find who serves whom, from elements of the context; None where it cannot be told. For a core of one sample."""
    sources = [source[0] for source in (core.q_source, core.k_source, core.v_source) if source is not None]
    context = None if core.values_step is None else core.values_step.output
    matrices = [p for p in module.parameters() if p.dim() > 1 and p.requires_grad]
    usable = isinstance(context, Tensor) and len(sources) == 3 and all(s.requires_grad for s in sources)
    if not usable or not isinstance(context, Tensor) or not context.requires_grad or not matrices:
        return None
    reach = [_sides(source, matrices) for source in sources]
    flat = context.flatten()
    found: dict[int, tuple[int, int]] = {}
    for position in torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(0))[: 12 * heads].tolist():
        sides = _sides(flat[position], matrices)
        q, k, v = (_head(sides, r, n) for r, n in zip(reach, (heads, kv_heads, kv_heads), strict=True))
        if q is not None and k is not None and v is not None and found.setdefault(q, (k, v)) != (k, v):
            return None
        if len(found) == heads:
            break
    if sorted(found) != list(range(heads)):
        return None
    return _Mapping(tuple(found[h][0] for h in range(heads)), tuple(found[h][1] for h in range(heads)))


def _line(trace: Trace) -> Place | None:
    """Find the line that repeats the key/value heads."""
    for name in ("repeat_interleave", "repeat", "tile", "expand", "cat", "stack"):
        for step in trace.steps:
            if step.name == name and step.place is not None:
                return step.place
    return None


def _judge(mapping: _Mapping, kv_heads: int, trace: Trace, evidence: dict[str, Any]) -> CheckResult:
    heads = len(mapping.keys)
    group = heads // kv_heads
    right = tuple(h // group for h in range(heads))
    evidence |= {"key_head_of_query_head": list(mapping.keys), "value_head_of_query_head": list(mapping.values)}
    evidence["expected"] = list(right)
    if mapping.keys == right and mapping.values == right:
        reason = f"query head h reads key/value head h // {group}: {heads} query heads share {kv_heads}"
        return _result("pass", reason, evidence)
    if mapping.keys != mapping.values:
        reason = f"keys and values are shared differently: {list(mapping.keys)} against {list(mapping.values)}"
        return _result("fail", reason, evidence, "K and V are repeated in different ways", _line(trace))
    turned = tuple(h % kv_heads for h in range(heads))
    if mapping.keys == turned:
        reason = (
            f"query head h reads key/value head h % {kv_heads}; trained grouped-query weights expect h // {group}: "
            f"{list(turned)} instead of {list(right)}"
        )
        return _result("fail", reason, evidence, "repeat or tile instead of repeat_interleave", _line(trace))
    reason = f"query heads read key/value heads {list(mapping.keys)}; trained weights expect {list(right)}"
    return _result("fail", reason, evidence, "key/value heads are repeated in an unusual order", _line(trace))


def _by_values(core: Core) -> int | None:
    """Count the different key heads of one sample by their values. None where there is no axis of heads."""
    if core.k.dim() < 3:
        return None
    heads = core.k.detach().flatten(0, -3)
    kept: list[Tensor] = []
    for head in heads:
        if not any(torch.equal(head, other) for other in kept):
            kept.append(head)
    return len(kept)


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    """Give the sizes of the matrices: fewer key/value heads show there first."""
    return {name: list(p.shape) for name, p in module.named_parameters() if p.dim() > 1}


def _sample(subject: Subject) -> Inputs:
    return subject.inputs(1, probe_sizes(subject)[1], seed=5)


def check(subject: Subject) -> CheckResult:
    """Ask which key/value head serves which query head."""
    declared = subject.num_heads, subject.num_kv_heads
    inputs = _sample(subject)
    module = subject.fresh()
    sight = look(subject, inputs, Use("eval"), module)
    evidence: dict[str, Any] = {"num_heads": declared[0], "num_kv_heads": declared[1]}
    if not sight.cores:
        if declared[0] and declared[1] and declared[0] != declared[1]:
            return _result("not_applicable", "no softmax of q kᵀ was seen, so the sharing cannot be read", evidence)
        return _result("not_applicable", "no key/value heads are shared, as far as can be seen", evidence)
    core = sight.cores[0]
    heads = max(core.q.shape[:-2].numel(), core.weights.shape[:-2].numel())
    counted = _by_values(core)
    kv_heads = declared[1] or counted
    if counted is not None and counted < heads:
        kv_heads = counted if not declared[1] or declared[1] >= heads else declared[1]
    if heads < 2 or not kv_heads or kv_heads >= heads:
        return _result("not_applicable", f"each of the {heads} query heads has its own key/value head", evidence)
    evidence |= {"num_heads": heads, "num_kv_heads": kv_heads, "parameter_shapes": _shapes(module)}
    if core.k.shape[-2] > inputs.key.shape[1] and core.k.shape[-2] % inputs.key.shape[1] == 0:
        reason = f"the keys are {core.k.shape[-2]} tokens long for {inputs.key.shape[1]} given"
        cause = "key/value heads are repeated along the sequence, not along the heads"
        return _result("fail", f"{reason}: {cause}", evidence, cause, _line(sight.trace))
    if kv_heads == 1:
        return _result("pass", f"all {heads} query heads share one key/value head (multi-query attention)", evidence)
    mapping = None if heads % kv_heads else _mapping(core, module, heads, kv_heads)
    if mapping is None:
        words = f"{heads} query heads and {kv_heads} key/value heads: the sharing cannot be read"
        return _result("not_applicable", words, evidence)
    evidence["different_key_heads"] = counted
    return _judge(mapping, kv_heads, sight.trace, evidence)
