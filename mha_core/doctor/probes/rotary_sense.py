"""Whether rotary positions do what they are for: scores of equal tokens depend on the distance, and order matters.

Angles that run over the heads leave the order of tokens without effect; pairs of one layout turned with the angles of
another give scores that depend on the places themselves. Neither shows in a shape, nor at place 0.

Axes: S tokens, D head_dim.
"""

from __future__ import annotations

import re

from torch import Tensor, nn

from mha_core.doctor.calls.signs import source_of
from mha_core.doctor.probes.influence import Probe, mapped
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Subject

_ANGLES = re.compile(r"inv_?freq|freqs|(^|_)(cos|sin)($|_)|theta|rope|rotary", re.IGNORECASE)
_TURNS = re.compile(r"rotar|rotat|rope", re.IGNORECASE)
_TWO_AXES = re.compile(r"2d|axial|vision|grid|spatial|patch", re.IGNORECASE)
CROOKED = 1e-3  # difference along one distance, relative to the largest score


def rotation_without_order(subject: Subject, probe: Probe, inputs: Inputs) -> CheckResult | None:
    """Find tables of angles that are used in a module which does not notice the order of its tokens."""
    if "rotary" not in subject.position_signs:
        return None
    trace = probe.look(inputs).trace
    used = [step for table in _tables(probe.module) for step in trace.used_by(table)]
    if not used:
        return None
    reason = f"rotary angles are computed, yet the order of {inputs.query.shape[1]} tokens does not matter"
    cause = "rotary positions run over another axis than the tokens"
    return CheckResult("permutation", "fail", reason, {"tokens": inputs.query.shape[1]}, cause, used[0].place)


def _tables(module: nn.Module) -> list[Tensor]:
    """List the tables of angles a module holds."""
    found = []
    for part in module.modules():
        own = {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
        held = {**dict(part.named_buffers(recurse=False)), **own}
        found += [table for name, table in held.items() if _ANGLES.search(name)]
    return found


def unequal_distances(subject: Subject, probe: Probe, inputs: Inputs) -> CheckResult | None:
    """Find rotary scores of equal tokens that differ although the distance is the same."""
    words = " ".join([type(part).__name__ for part in subject.module.modules()] + [source_of(subject.module)])
    if subject.position_signs != ("rotary",) or not _TURNS.search(words) or _TWO_AXES.search(words):
        return None
    look = probe.look(mapped(inputs, lambda tensor: tensor[:, :1].expand_as(tensor).contiguous()))
    length = inputs.query.shape[1]
    if len(look.cores) != 1:
        return None
    q, k = look.cores[0].q.detach().double(), look.cores[0].k.detach().double()
    if q.shape[-2] != length or k.shape[-2] != length or q.shape[:-2] != k.shape[:-2]:
        return None
    scores = q @ k.transpose(-2, -1)
    spread = max(_spread(scores.diagonal(offset, -2, -1)) for offset in range(1 - length, length))
    crooked = spread / max(float(scores.abs().max()), 1e-30)
    if crooked <= CROOKED:
        return None
    reason = f"scores of equal tokens at one distance differ by {crooked:.2g} of their size: they depend on the places"
    cause = "rotary pairs of one layout are turned by the angles of another"
    evidence = {"tokens": length, "relative_difference": crooked}
    return CheckResult("permutation", "fail", reason, evidence, cause, look.cores[0].scores_place)


def _spread(diagonal: Tensor) -> float:
    return float((diagonal - diagonal[..., :1]).abs().max())
