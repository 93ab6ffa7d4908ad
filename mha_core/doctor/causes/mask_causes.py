"""Mistakes in how keys are hidden: a mask thrown away, multiplied, too late, too weak, inverted, of another sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mha_core.doctor.causes.hiding import covered
from mha_core.doctor.causes.mask_origins import mask_order_cause
from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.definitions import MAKERS, TRIANGLE, defined, made_at
from mha_core.doctor.traces.tracing import Trace, tensors

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)
CASTS = ("to", "float", "half", "type", "type_as", "double", "bfloat16")
SHAPED = ("__getitem__", "unsqueeze", "view", "reshape", "expand")
THROWN = ("masked_fill", "where", "masked_scatter", "index_fill", "add", "mul", "sub")


def mask_cause(trace: Trace, core: Core, *, keep: Tensor | None = None) -> Cause:
    """Name the mistake in the mask, with its line.

    Args:
        keep: what the caller asked for, True = may attend: (B, Sk), (Sq, Sk), or broadcastable to the scores.
    """
    try:
        for reader in (_thrown_away, _kind, _late, _hopeless_fill):
            cause = reader(trace, core)
            if cause[0]:
                return cause
        return mask_order_cause(trace, core) or _pattern(trace, core, keep) or _weak_fill(core)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
        return UNKNOWN


def path_cause(masked: Core, unmasked: Core) -> Cause:
    """Name the mask that only one of two calls has; the line is where the other computes its scores."""
    if not masked.masks or unmasked.masks:
        return UNKNOWN
    seen = f" (the other has it in line {masked.mask_place.line})" if masked.mask_place else ""
    return f"only one of two paths applies the mask{seen}", unmasked.softmax_place


def _thrown_away(trace: Trace, core: Core) -> Cause:
    """Find a masking whose result nobody uses, on a tensor that lies on the way of this attention."""
    way = {id(tensor) for tensor in _on_the_way(core)}
    for step in trace.steps:
        if step.name not in THROWN or step.changed is not None or not isinstance(step.output, Tensor):
            continue
        if any(step.output is t for t in step.inputs) or trace.used_by(step.output):
            continue
        if not any(id(t) in way for t in step.inputs) or step.output.shape[-2:] != core.scores.shape[-2:]:
            continue
        if step.name in ("add", "mul", "sub") and not any(_hides(t) for t in step.inputs if id(t) not in way):
            continue
        if _is_returned(trace, step.index):
            continue
        return f"the result of {step.name} is thrown away: it makes a new tensor", step.place
    return UNKNOWN


def _on_the_way(core: Core) -> list[Tensor]:
    found: list[Tensor] = []
    if core.walk is not None and core.walk.product is not None:
        found += list(tensors(core.walk.product.step.output))
        found += [t for _, taken, given in core.walk.path for t in (taken, given)]
    if core.use is not None:
        found += [t for _, taken, given in core.use.path for t in (taken, given)]
    if core.softmax_step is not None:
        found += [*core.softmax_step.inputs, *core.softmax_step.outputs]
    return found


def _hides(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor <= -1e3).any() or ((tensor == 0) | (tensor == 1)).all())


def _is_returned(trace: Trace, index: int) -> bool:
    """Whether nothing comes after a step, so its result may be what the module returns."""
    return index >= len(trace.steps) - 1


def _kind(trace: Trace, core: Core) -> Cause:
    for mask in core.masks:
        if mask.kind == "multiplied" and bool(mask.hidden.any()) and not covered(core.masks, mask):
            return "scores are multiplied by the mask: hidden scores become 0, and exp(0) = 1", mask.place
        if mask.kind == "added as 0 and 1":
            if mask.mask is not None and mask.mask.dtype == torch.bool:
                return "a bool mask is added to the scores as 0 and 1: it hides nothing", mask.place
            place = made_at(trace, mask, CASTS + MAKERS) or mask.place
            return "a mask of 0 and 1 is added to the scores: it hides nothing", place
        if mask.fill is not None and math.isnan(mask.fill):
            return "the mask holds NaN: 0 times -inf", mask.place
        if mask.mask is not None and mask.kind == "added" and _overflows(mask.mask):
            return "two fills of the lowest number add up to -inf", made_at(
                trace, mask, ("add", "add_", "sub")
            ) or mask.place
    return UNKNOWN


def _late(trace: Trace, core: Core) -> Cause:
    """Find weights zeroed after softmax that were not zero before, without renormalising."""
    if core.use is None or core.softmax_step is None:
        return UNKNOWN
    path = core.use.path
    for position, (step, taken, given) in enumerate(path):
        if step.name.rstrip("_") not in ("masked_fill", "mul", "where", "setitem", "__setitem"):
            continue
        before, after = trace.value(taken, step.index).detach(), trace.value(given, step.index + 1).detach()
        if before.shape != after.shape or not any(_masks(t) for t in step.inputs if t is not taken):
            continue
        rows = (before > 0).any(-1, keepdim=True) & (after != 0).any(-1, keepdim=True)
        lost = (after == 0) & (before > 1e-6) & rows
        infinite = bool((after == -math.inf).any())
        if not infinite and not bool(lost.any()):
            continue
        if infinite:
            return "the mask comes after softmax, and its fill -inf reaches the values", step.place
        if not _renormalised(trace, path[position + 1 :]):
            return "the mask comes after softmax, and the weights are not renormalised", step.place
    return UNKNOWN


def _masks(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def _renormalised(trace: Trace, rest: tuple[tuple[object, Tensor, Tensor], ...]) -> bool:
    names = [getattr(step, "name", "").rstrip("_") for step, _, _ in rest]
    return any(name in ("div", "normalize", "softmax") for name in names)


def _overflows(mask: Tensor) -> bool:
    """Whether an added mask holds -inf beside the lowest finite number of its type."""
    if not mask.is_floating_point():
        return False
    return bool((mask == -math.inf).any()) and bool((mask == torch.finfo(mask.dtype).min).any())


def _weak_fill(core: Core) -> Cause:
    for mask in core.masks:
        fill = mask.fill
        if (
            fill is None
            or mask.kind not in ("filled", "added")
            or not bool(mask.hidden.any())
            or covered(core.masks, mask)
        ):
            continue
        if fill > max(-1e8, torch.finfo(core.scores.dtype).min):
            return f"the fill {fill:g} is weak: scores below it exist, and then hidden keys win", mask.place
    return UNKNOWN


def _hopeless_fill(trace: Trace, core: Core) -> Cause:
    for mask in core.masks:
        fill = mask.fill
        if fill is None or mask.kind not in ("filled", "added") or not bool(mask.hidden.any()):
            continue
        if covered(core.masks, mask):
            continue
        if mask.kind == "added" and mask.hidden.numel() > 1 and bool(mask.hidden.all()):
            return "the mask hides everything: one of 0 and -inf was taken for one of 0 and 1", mask.place
        if fill == math.inf or fill > 1e3:
            return f"the fill {fill:g} has the wrong sign: hidden keys get all the weight", mask.place
        if fill == 0:
            return "hidden scores are set to 0, and exp(0) = 1", mask.place
        if abs(fill) < 1e-3:
            return f"the fill {fill:g} is nearly 0, and exp(0) = 1: -1e9 was meant", mask.place
    return UNKNOWN


def _pattern(trace: Trace, core: Core, keep: Tensor | None) -> Cause | None:
    """Judge which positions are hidden: swapped, upside down, off by one."""
    if core.hidden is None:
        return None
    hidden = core.hidden.expand(core.scores.shape) if core.hidden.shape != core.scores.shape else core.hidden
    if keep is not None:
        wanted = _spread(keep, hidden)
        if wanted is not None and torch.equal(hidden, wanted) and not torch.equal(hidden, ~wanted):
            return "True and False are swapped: what may be attended to is hidden", core.mask_place
    visible = torch.unique(~hidden.reshape(-1, *hidden.shape[-2:]), dim=0)
    if len(visible) > 1 or not bool(visible.any()):
        visible = visible[visible.flatten(1).any(-1)]
    rows = visible.any(-1)
    if bool((visible == visible[..., :1]).all()) and visible.shape[-1] > 1 and bool(rows.any() & ~rows.all()):
        mask = next((m for m in core.masks if m.place == core.mask_place), core.masks[0])
        return "the mask lies along the queries, not along the keys", made_at(trace, mask, SHAPED) or mask.place
    for seen in visible:
        words = _triangle(seen)
        if words:
            return words, _triangle_place(trace, core, words)
    return None


def _triangle(seen: Tensor) -> str:
    """Name a wrong triangle (S, S) of what may be seen."""
    size, k_len = seen.shape
    if size < 3 or k_len != size:
        return ""
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    if torch.equal(seen, ~lower):
        return "True and False are swapped: rows see only what comes after them"
    if torch.equal(seen, lower.T):
        return "the triangle is upside down: rows see what comes after them, not before"
    if torch.equal(seen, lower.tril(-1)):
        return "the triangle is off by one: a row may not see itself"
    if torch.equal(seen, torch.ones_like(seen).tril(1)):
        return "the triangle is off by one: every row sees one token that comes after it"
    return ""


def _triangle_place(trace: Trace, core: Core, words: str) -> Place | None:
    """Give the line that drew the triangle; for one used the wrong way round, the line that uses it."""
    mask = next((m for m in core.masks if m.place == core.mask_place), core.masks[0])
    if words.startswith("True and False") and core.kind == "softmax":
        return mask.place
    return made_at(trace, mask) or defined(trace, mask.place, TRIANGLE)


def _spread(keep: Tensor, hidden: Tensor) -> Tensor | None:
    """Bring a mask over keys or over pairs to the shape of the scores."""
    leading = hidden.shape[:-2]
    shapes = [keep]
    if keep.dim() == 2:
        shapes = [keep.view(keep.shape[0], *[1] * (hidden.dim() - 2), keep.shape[1]), keep]
    elif keep.dim() == 3:
        shapes = [keep.view(keep.shape[0], *[1] * (hidden.dim() - 3), *keep.shape[1:])]
    for shaped in shapes:
        if len(leading) == 1 and shaped.dim() == 3 and leading[0] % shaped.shape[0] == 0:
            shaped = shaped.repeat_interleave(leading[0] // shaped.shape[0], 0)
        try:
            return shaped.expand(hidden.shape)
        except RuntimeError:
            continue
    return None
