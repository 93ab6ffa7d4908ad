"""One orientation for all tensors of an attention computation: (..., queries, keys), (..., queries or keys, channels).

Nothing is taken from the position of an axis. Elements are numbered in the product of queries and keys, the numbers
follow the recorded steps to the softmax and on to the values, and the axis summed over there is the axis of the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.doctor.traces.backwards import Walk
from mha_core.doctor.traces.forwards import Softmax, Use
from mha_core.doctor.traces.products import Labels, Product, oriented
from mha_core.doctor.traces.replay import carry, numbered
from mha_core.doctor.traces.tracing import Trace


@dataclass(frozen=True, eq=False)
class Aligned:
    """The tensors of a `Core`, oriented.

    Attributes:
        swapped: the keys are the left operand of the product.
        row, columns: labels of the queries and of the keys in it.
        order: permutation of the axes of the scores as they were.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    used: Tensor
    dim: int
    bias: Tensor | None
    hidden: Tensor | None
    swapped: bool
    row: int | None
    columns: Labels
    order: tuple[int, ...]


def align(trace: Trace, softmax: Softmax, walk: Walk, way: Use) -> Aligned:
    """Orient everything; where axes cannot be told apart, the last two of the scores are queries and keys."""
    score = walk.product
    assert score is not None
    scores = trace.value(softmax.scores, softmax.scores_index).detach()
    weights = trace.value(softmax.weights, softmax.step.index + 1).detach()
    used = (way.product.left if way.weights_left else way.product.right).detach()
    numbers = _known(carry(numbered(score.out), walk.path), scores.shape)  # scores -> elements of the product
    passed = _known(carry(numbered(weights), way.path), used.shape)  # used weights -> elements of the weights
    key_label = _key_label(score, numbers, passed, way)
    swapped = key_label in score.only(score.left_labels, score.right_labels)
    rows = score.only(*_sides(score, not swapped))
    columns = score.only(*_sides(score, swapped))
    row_label = rows[-1] if rows else None
    axes = _axes(numbers, score, row_label, key_label if key_label in columns else (columns[-1] if columns else None))
    order = [*(i for i in range(scores.dim()) if i not in axes), *axes]
    q, k = queries_and_keys(score, swapped, row_label, columns)
    scores_o, weights_o = scores.permute(order), weights.permute(order)
    numbers_o = None if numbers is None else numbers.permute(order)
    q, k = (_fit(t, numbers_o, score, scores_o.shape, (row_label, columns)) for t in (q.detach(), k.detach()))
    v, used_o = _values(way, passed, weights, order)
    bias, hidden = _added(walk, scores.shape)
    return Aligned(
        q=q,
        k=k,
        v=v,
        scores=scores_o,
        weights=weights_o,
        used=used_o,
        dim=order.index(softmax.dim % scores.dim()) - scores.dim(),
        bias=None if bias is None else bias.expand(scores.shape).permute(order),
        hidden=None if hidden is None else hidden.expand(scores.shape).permute(order),
        swapped=swapped,
        row=row_label,
        columns=columns,
        order=tuple(order),
    )


def _known(numbers: Tensor | None, shape: torch.Size) -> Tensor | None:
    return numbers if numbers is not None and numbers.shape == shape else None


def _sides(score: Product, left: bool) -> tuple[Labels, Labels]:
    pair = (score.left_labels, score.right_labels)
    return pair if left else pair[::-1]


def _coordinate(numbers: Tensor, score: Product, label: int) -> Tensor:
    """Coordinate along one axis of the product for every numbered element; -1 for elements from elsewhere."""
    axis = score.out_labels.index(label)
    after = math.prod(score.out.shape[axis + 1 :])
    return torch.where(numbers < 0, -1, (numbers // after) % score.out.shape[axis])


def _key_label(score: Product, numbers: Tensor | None, passed: Tensor | None, way: Use) -> int | None:
    """Find the axis of the scores' product that the values' product sums over."""
    if numbers is None or passed is None:
        return None
    labels = way.product.left_labels if way.weights_left else way.product.right_labels
    summed = [n for n in way.product.contracted if n in labels]
    if len(summed) != 1:
        return None
    flat = numbers.reshape(-1)
    combined = torch.where(passed < 0, -1.0, flat[passed.clamp(min=0).long().reshape(-1)].view(passed.shape))
    first = combined.movedim(labels.index(summed[0]), 0)
    if first.shape[0] < 2:
        return None
    for label in reversed(score.out_labels):
        found = _coordinate(first[:2], score, label)
        if bool((found[0] != found[1]).any()):
            return label
    return None


def _axes(numbers: Tensor | None, score: Product, row: int | None, column: int | None) -> tuple[int, int]:
    """Axes of the scores that hold queries and keys."""
    last = (-2, -1)
    rank = 2 if numbers is None else numbers.dim()
    if numbers is None or row is None or column is None:
        return (rank - 2, rank - 1) if numbers is not None else last
    found: list[int] = []
    for label in (row, column):
        coordinate = _coordinate(numbers, score, label)
        varies = [i for i in range(rank) if i not in found and _varies(coordinate, i)]
        if not varies:
            varies = [i for i in reversed(range(rank)) if i not in found and numbers.shape[i] == 1]
        if not varies:
            return rank - 2, rank - 1
        found.append(varies[-1])
    return found[0], found[1]


def _varies(coordinate: Tensor, axis: int) -> bool:
    return coordinate.shape[axis] > 1 and bool((coordinate.narrow(axis, 0, 1) != coordinate).any())


def queries_and_keys(score: Product, swapped: bool, row: int | None, columns: Labels) -> tuple[Tensor, Tensor]:
    """Orient the operands of a product; labels as in `Aligned`."""
    q, k = (score.right, score.left) if swapped else (score.left, score.right)
    q_labels, k_labels = _sides(score, not swapped)
    column = columns[-1] if columns else None
    batch = [n for n in score.out_labels if n not in (row, column)]
    inner = score.contracted
    q = oriented(q, q_labels, [*batch, *([row] if row is not None else []), *inner])
    k = oriented(k, k_labels, [*batch, *([column] if column is not None else []), *inner])
    q, k = (t.flatten(t.dim() - len(inner)) if len(inner) > 1 else t for t in (q, k))
    q = q.unsqueeze(-2) if row is None else q
    k = k.unsqueeze(-2) if column is None else k
    shape = _together(q.shape[:-2], k.shape[:-2])
    return q.expand(*shape, *q.shape[-2:]), k.expand(*shape, *k.shape[-2:])


def _fit(
    tensor: Tensor, numbers: Tensor | None, score: Product, shape: torch.Size, labels: tuple[int | None, Labels]
) -> Tensor:
    """Give an operand the leading axes of the scores, where those were folded or unfolded after the product."""
    leading = shape[:-2]
    if numbers is None or tensor.shape[:-2] == leading or math.prod(tensor.shape[:-2]) != math.prod(leading):
        return tensor
    row, columns = labels
    batch = [n for n in score.out_labels if n not in (row, columns[-1] if columns else None)]
    position = torch.zeros(numbers.shape[:-2], dtype=torch.float64)
    for label, size in zip(batch, tensor.shape[:-2], strict=True):
        position = position * size + _coordinate(numbers[..., 0, 0], score, label).clamp(min=0)
    return tensor.flatten(0, -3)[position.reshape(-1).long()].view(*leading, *tensor.shape[-2:])


def _together(*shapes: torch.Size) -> tuple[int, ...]:
    """Broadcast leading axes of equal count (torch.broadcast_shapes loads a symbolic library on its first call)."""
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes, strict=True))


def _values(way: Use, passed: Tensor | None, weights: Tensor, order: list[int]) -> tuple[Tensor, Tensor]:
    """Orient the values and the used weights, with the leading axes of the oriented weights where they match."""
    used_o, v = weights_and_values(way.product, way.weights_left)
    shape = v.shape[:-2]
    leading = [weights.shape[i] for i in order[:-2]]
    if list(shape) == leading or passed is None or math.prod(shape) != math.prod(leading):
        return v, used_o
    made = way.product
    numbered_product = replace(made, left=passed) if way.weights_left else replace(made, right=passed)
    numbers, _ = weights_and_values(numbered_product, way.weights_left)
    first = numbers[..., 0, 0].reshape(-1)
    wanted = numbered(weights).permute(order)[..., 0, 0].reshape(-1)
    where = first.argsort()
    if bool((first < 0).any()) or not torch.equal(first[where], wanted.sort().values):
        return v, used_o
    chosen = where[wanted.argsort().argsort()]
    return tuple(t.flatten(0, -3)[chosen].view(*leading, *t.shape[-2:]) for t in (v, used_o))  # type: ignore[return-value]


def weights_and_values(made: Product, weights_left: bool) -> tuple[Tensor, Tensor]:
    """Orient the operands of the values' product: (..., Sq, Sk) and (..., Sk, Dv)."""
    mine, other = (made.left_labels, made.right_labels)[:: 1 if weights_left else -1]
    used, v = (t.detach() for t in (made.left, made.right)[:: 1 if weights_left else -1])
    inner = made.contracted
    rows, channels = made.only(mine, other), made.only(other, mine)
    row, channel = (rows[-1] if rows else None), (channels[-1] if channels else None)
    batch = [n for n in made.out_labels if n not in (row, channel)]
    v = oriented(v, other, [*batch, *inner, *([channel] if channel is not None else [])])
    used = oriented(used, mine, [*batch, *([row] if row is not None else []), *inner])
    v = v.unsqueeze(-1) if channel is None else v
    used = used.unsqueeze(-2) if row is None else used
    shape = _together(v.shape[:-2], used.shape[:-2])
    return used.expand(*shape, *used.shape[-2:]), v.expand(*shape, *v.shape[-2:])


def _added(walk: Walk, shape: torch.Size) -> tuple[Tensor | None, Tensor | None]:
    """Bring biases and hidden positions to the shape of the scores."""
    bias: Tensor | None = None
    hidden: Tensor | None = None
    for position, mask in walk.masks:
        if mask.kind == "added as 0 and 1":
            extra = _brought(walk, position, mask.mask, (mask.fill or 1.0), shape)
            bias = extra if bias is None else bias + extra if extra is not None else bias
            continue
        here = _brought(walk, position, mask.hidden.double(), None, shape)
        if here is not None:
            hidden = here > 0.5 if hidden is None else hidden | (here > 0.5)
    for position, added, sign in walk.biases:
        extra = _brought(walk, position, added, sign, shape)
        bias = extra if bias is None else bias + extra if extra is not None else bias
    return bias, hidden


def _brought(walk: Walk, position: int, content: Tensor | None, sign: float | None, shape: torch.Size) -> Tensor | None:
    if content is None:
        return None
    content = content.detach().double()
    here = walk.path[position - 1][2].shape if position else walk.product.out.shape  # type: ignore[union-attr]
    content = content.expand(here)
    if sign is not None:
        for step, _, _ in walk.path[position:]:
            known = [value for value, made in walk.scalars if made is step]
            content = content * math.prod(v for v in known if v is not None)
        content = content * sign
    carried = carry(content, walk.path[position:])
    return carried if carried is not None and carried.shape == shape else None
