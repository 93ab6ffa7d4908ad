"""Whether every mask meets the scores of its own sample, where masks were repeated for the heads."""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.doctor.causes.hiding import Masking, together
from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.operands import RESHAPES
from mha_core.doctor.traces.origins import CHANNELS, TOKENS, Origins, unpacked
from mha_core.doctor.traces.replay import again
from mha_core.doctor.traces.tracing import Step, Trace

REPEATS = ("repeat", "tile", "repeat_interleave", "expand", "cat", "stack")
MESSAGE = "masks meet the scores of other samples: batch and heads lie in another order"
REPEATED = "masks meet the scores of other samples: repeat where repeat_interleave is needed"


class _MaskOrigins(Origins):
    """Numbers masks by sample: their first axis, where it has the size of the batch."""

    def _input(self, tensor: Tensor) -> Tensor | None:
        shape = tensor.shape
        square = tensor.dim() > 1 and shape[0] == shape[-1]
        if tensor.dim() not in (1, 2, 3, 4) or shape[0] != self.batch or square:
            return None
        numbers = torch.arange(shape[0], dtype=torch.float64) * TOKENS * CHANNELS
        return numbers.view(-1, *[1] * (tensor.dim() - 1)).expand(shape)

    def _made(self, made: Step, tensor: Tensor, depth: int) -> Tensor | None:
        if made.name in REPEATS + RESHAPES and not tensor.is_floating_point():
            return self._moved(made, tensor, depth)
        return super()._made(made, tensor, depth)

    def _moved(self, made: Step, tensor: Tensor, depth: int) -> Tensor | None:
        found = {id(t): n for t in made.inputs if (n := self.of(t, made.index, depth)) is not None}
        return again(made, found, tensor) if found else None


def mask_order_cause(trace: Trace, core: Core) -> tuple[str, Place | None] | None:
    """Compare the sample of every mask element with the sample of the score it hides."""
    source = core.q_source
    root = None if source is None else _root(trace, *source)
    if root is None or root.shape[0] < 2:
        return None
    batch, length = root.shape[:2]
    rows = Origins(trace, batch, (length,), (core,))
    masks = _MaskOrigins(trace, batch, (), ())
    for mask in core.masks:
        tensor = _mask_tensor(mask)
        numbers = None if tensor is None else masks.of(tensor, mask.step.index)
        scores = _scores(core, mask, rows)
        if numbers is None or scores is None or tensor is None:
            continue
        try:
            mine, theirs = together(unpacked(numbers).sample, unpacked(scores).sample)
        except RuntimeError:
            continue
        if bool(((mine != theirs) & (mine >= 0) & (theirs >= 0)).any()):
            if bool((mine == 0).all()):
                return "the mask of the first sample hides keys of every sample", mask.place
            repeated = _repeat_place(trace, tensor, mask.step.index)
            return (REPEATED, repeated) if repeated else (MESSAGE, mask.place)
    return None


def _root(trace: Trace, tensor: Tensor, index: int) -> Tensor | None:
    """Find the (B, S, E) input behind an operand."""
    for _ in range(80):
        made = trace.made_before(tensor, index)
        floating = [] if made is None else [t for t in made.inputs if t.is_floating_point()]
        if made is None or not floating:
            return tensor if tensor.dim() == 3 and not isinstance(tensor, torch.nn.Parameter) else None
        floating = [t for t in floating if not isinstance(t, torch.nn.Parameter)] or floating
        tensor, index = max(floating, key=torch.Tensor.numel), made.index
    return None


def _mask_tensor(mask: Masking) -> Tensor | None:
    step = mask.step
    if step.name == "scaled_dot_product_attention":
        found = step.argument(3, "attn_mask")
        return found if isinstance(found, Tensor) else None
    others = [t for t in step.inputs if t.shape[-1:] == mask.hidden.shape[-1:] or t.dtype == torch.bool]
    if step.name.startswith("baddbmm"):
        return step.inputs[0]
    named = [t for t in others if t.dtype == torch.bool] or others[1:]
    return named[0] if named else None


def _scores(core: Core, mask: Masking, rows: Origins) -> Tensor | None:
    step = mask.step
    if core.kind == "sdpa":
        numbers = rows.of(step.argument(0, "query"), step.index)
        return None if numbers is None else numbers[..., :1]
    return rows.of(step.output if isinstance(step.output, Tensor) else step.inputs[0], step.index + 1)


def _repeat_place(trace: Trace, tensor: Tensor, index: int) -> Place | None:
    """Find the step that repeated a mask for the heads, among everything the mask was made from."""
    waiting = [(tensor, index)]
    for _ in range(40):
        if not waiting:
            break
        tensor, index = waiting.pop(0)
        made = trace.made_before(tensor, index)
        if made is None:
            continue
        if made.name in REPEATS and made.name != "expand":
            return made.place
        waiting += [(given, made.index) for given in made.inputs]
    return None
