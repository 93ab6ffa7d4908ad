"""The values of one step as pictures: one map per head where there are heads, one for the whole tensor otherwise.

Letters: see mha_core.lenses.steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mha_core.lenses.trace import Trace

MASKED = ("masked", "weights", "dropped")  # steps in which hidden pairs have no value of their own


@dataclass(frozen=True)
class StepMaps:
    """Maps of one sequence of the batch.

    Attributes:
        values: (N, rows, columns).
        allowed: boolean (1, 1 or rows, columns), False where the mask hides; None where nothing is hidden.
        names: what each of the N maps is.
        rows, columns: the letters of the two axes, as in the step's symbolic shape.
    """

    values: Tensor
    allowed: Tensor | None
    names: tuple[str, ...]
    rows: str
    columns: str


def step_maps(trace: Trace, name: str, sample: int) -> StepMaps | None:
    """Cut the values of a step into maps.

    Args:
        sample: which sequence of the batch; the last one where the step has fewer, as a mask for all.

    Returns:
        None where only shapes were followed.
    """
    values, axes = trace.values(name), trace.step(name).symbolic
    if values is None:
        return None
    if axes[0] in ("B", "1") and values.ndim > 2:
        values, axes = values[min(sample, len(values) - 1)], axes[1:]
    if values.ndim == 4:  # (S, Hkv, G+2, D): the packed channels of a group are one row
        values, axes = values.flatten(-2), (*axes[:2], f"({axes[2]})·{axes[3]}")
    if values.ndim == 3 and axes[1] in ("H", "Hkv"):
        values, axes = values.transpose(0, 1), (axes[1], axes[0], axes[2])
    if values.ndim == 2:
        return StepMaps(values[None], None, (name,), axes[0], axes[1])
    allowed = _allowed(trace, sample, values.shape[-2]) if name in MASKED else None
    if axes[0] == "1":
        return StepMaps(values, None, ("all heads",), axes[1], axes[2])
    kind = "key/value head" if axes[0] == "Hkv" else "head"
    return StepMaps(values, allowed, tuple(f"{kind} {number}" for number in range(len(values))), axes[1], axes[2])


def _allowed(trace: Trace, sample: int, rows: int) -> Tensor | None:
    """Give the mask of one sequence, cut to the rows of a chunk."""
    if "mask" not in trace.recorder.tensors:
        return None
    mask = trace.recorder.tensors["mask"]
    return mask[min(sample, len(mask) - 1)][:, :rows]
