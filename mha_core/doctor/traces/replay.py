"""Where the elements of a tensor came from: recorded steps done again on element numbers instead of values.

A step that only moves elements (view, transpose, getitem, cat ...) is called once more with numbers in the place of a
tensor; a step that works element by element leaves the numbers alone. What comes out says, for every element of the
result, which element of the start it is; -1 marks elements from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.traces.tracing import Step, tensors

_MOVES = (
    "view reshape transpose permute swapaxes swapdims movedim moveaxis unsqueeze squeeze expand expand_as repeat "
    "repeat_interleave tile T mT H mH t adjoint __getitem__ chunk split unbind flatten unflatten narrow select "
    "index_select cat concat concatenate stack hstack vstack dstack roll flip pad view_as reshape_as broadcast_to "
    "tensor_split split_with_sizes ravel unfold diagonal as_strided gather take_along_dim block_diag "
    "transpose_ unsqueeze_ squeeze_ swapaxes_ t_ hsplit vsplit dsplit meshgrid broadcast_tensors atleast_2d "
    "atleast_3d sort topk unsafe_chunk unsafe_split"
)
MOVES = frozenset(_MOVES.split())
LAYOUT = MOVES | {
    "contiguous",
    "clone",
    "to",
    "float",
    "half",
    "double",
    "bfloat16",
    "type",
    "type_as",
    "detach",
    "data",
}


def numbered(tensor: Tensor) -> Tensor:
    """Number the elements of a tensor, as float64 (exact to 2^53), in its shape."""
    return torch.arange(tensor.numel(), dtype=torch.float64).view(tensor.shape)


def again(step: Step, known: Mapping[int, Tensor], wanted: Tensor) -> Tensor | None:
    """Do a step with other content. `known`: content by the id of an input; `wanted`: the output asked for.

    Returns None where the step neither moves elements nor keeps their shape.
    """
    if step.name == "__setitem__":
        return _assigned(step, known)
    if step.name in MOVES and step.func is not None:
        content = {id(t): torch.full(t.shape, -1.0, dtype=torch.float64) for t in step.inputs if t.is_floating_point()}
        content |= {name: tensor.contiguous() for name, tensor in known.items()}  # a view needs it, as it did then
        replaced = _replace(step.args, content), _replace(dict(step.kwargs), content)
        if step.name == "pad":
            replaced = ((*replaced[0][:2], "constant", -1.0), {k: v for k, v in replaced[1].items() if k == "pad"})
        made = list(tensors(step.func(*replaced[0], **replaced[1])))
        position = next((i for i, t in enumerate(tensors(step.output)) if t is wanted), 0)
        return made[position]
    inputs = step.inputs[1:] if step.name == "copy_" else step.inputs
    for tensor in inputs:
        if id(tensor) in known:
            try:
                return known[id(tensor)].expand(wanted.shape)
            except RuntimeError:
                continue
    return None


def carry(content: Tensor, path: Sequence[tuple[Step, Tensor, Tensor]]) -> Tensor | None:
    """Take content along a path of (step, its input on the path, its output on the path)."""
    carried: Tensor | None = content
    for step, taken, given in path:
        if carried is None:
            return None
        carried = again(step, {id(taken): carried}, given)
    return carried


def places(tensor: Tensor) -> Tensor:
    """Give where in memory every element of a tensor lies, in elements from the start of its storage."""
    found = torch.full(tensor.shape, int(tensor.storage_offset()), dtype=torch.long)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        found += (torch.arange(size) * stride).view([-1 if i == axis else 1 for i in range(tensor.dim())])
    return found


def overwritten(tensor: Tensor, before: Tensor, changed: Tensor, content: Tensor) -> Tensor:
    """Give the numbers of a tensor after another that shares its memory was written."""
    mine, theirs = places(tensor), places(changed)
    memory = torch.full((int(max(mine.max(), theirs.max())) + 1,), -1.0, dtype=torch.float64)
    memory[mine] = before
    memory[theirs] = content
    return memory[mine]


def _assigned(step: Step, known: Mapping[int, Tensor]) -> Tensor:
    target, where, source = step.args[:3]
    base = known.get(id(target), torch.full(target.shape, -1.0, dtype=torch.float64)).clone()
    if isinstance(source, Tensor) and id(source) in known:
        base[where] = known[id(source)]
    return base


def _replace(found: Any, content: Mapping[int, Tensor]) -> Any:
    if isinstance(found, Tensor):
        return content.get(id(found), found)
    if isinstance(found, dict):
        return {name: _replace(inner, content) for name, inner in found.items()}
    if isinstance(found, tuple) and type(found) is tuple:
        return tuple(_replace(inner, content) for inner in found)
    return [_replace(inner, content) for inner in found] if isinstance(found, list) else found
