"""Which sample, which token and which channel every element of a tensor came from.

The inputs of a pass are numbered by sample and token. Steps that move elements move the numbers along; a projection
keeps sample and token and numbers its channels anew; a product of weights and values takes the token from the queries
and the channel from the values. So a head split without a transpose shows as what it is: rows that mix tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.products import Product, is_learned, product
from mha_core.doctor.traces.replay import MOVES, again, overwritten
from mha_core.doctor.traces.tracing import Step, Trace

CHANNELS, TOKENS, SAMPLES = 1 << 20, 1 << 12, 1 << 8  # radices of the numbers; float64 holds them exactly
REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "norm", "logsumexp", "std", "var", "prod")


@dataclass(frozen=True, eq=False)
class Origin:
    """Numbers of samples, tokens and channels, each in the shape of the tensor; -1 where an element is none of them."""

    sample: Tensor
    token: Tensor
    channel: Tensor


def unpacked(numbers: Tensor) -> Origin:
    """Take packed numbers apart."""
    known = numbers >= 0
    digits = numbers.long()
    channel, rest = digits % CHANNELS, digits // CHANNELS
    token, sample = rest % TOKENS, rest // TOKENS
    return Origin(*(part.masked_fill(~known, -1) for part in (sample, token, channel)))


class Origins:
    """Numbers every tensor of a trace, on demand. Products of activations that are not attention stay unknown.

    Args:
        batch, lengths: sizes by which the axes of inputs are known.
        found: the attention computations of the trace.
    """

    def __init__(self, trace: Trace, batch: int, lengths: tuple[int, ...], found: Sequence[Core]) -> None:
        self.trace = trace
        self.batch = batch
        self.lengths = lengths
        self.values = {c.values_step.index: c.use.weights_left for c in found if c.use and c.values_step}
        self.scores = {c.product_step.index: not c.aligned.swapped for c in found if c.aligned and c.product_step}
        self.known: dict[tuple[int, int], Tensor | None] = {}

    def of(self, tensor: Tensor, index: int, depth: int = 0) -> Tensor | None:
        """Give the packed numbers of a tensor as it is read by step `index`; None where they cannot be told."""
        made = self.trace.made_before(tensor, index)
        key = (id(tensor), -1 if made is None else made.index)
        if key not in self.known:
            self.known[key] = None
            if depth < 300:
                try:
                    self.known[key] = self._input(tensor) if made is None else self._made(made, tensor, depth + 1)
                except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
                    self.known[key] = None
        return self.known[key]

    def _input(self, tensor: Tensor) -> Tensor | None:
        """Number an input: its sample and token axes are known by their sizes, the others are channels."""
        if isinstance(tensor, torch.nn.Parameter) or not tensor.is_floating_point() or tensor.dim() < 2:
            return None
        shape = tensor.shape
        tries = {3: ((0, 1), (1, 0)), 4: ((0, 2), (0, 1), (1, 0)), 2: ((None, 0),)}.get(tensor.dim(), ())
        for sample, token in tries:
            fits = self.batch == 1 if sample is None else shape[sample] == self.batch
            if fits and shape[token] in self.lengths:
                return self._numbered(shape, sample, token)
        return None

    def _numbered(self, shape: torch.Size, sample: int | None, token: int) -> Tensor:
        rank = len(shape)

        def along(axis: int | None) -> Tensor:
            if axis is None:
                return torch.zeros((1,) * rank, dtype=torch.float64)
            return torch.arange(shape[axis], dtype=torch.float64).view([-1 if i == axis else 1 for i in range(rank)])

        rest = [i for i in range(rank) if i not in (sample, token)]
        channel = torch.zeros((1,) * rank, dtype=torch.float64)
        for axis in rest:
            channel = channel * shape[axis] + along(axis)
        return ((along(sample) * TOKENS + along(token)) * CHANNELS + channel).expand(shape)

    def _made(self, made: Step, tensor: Tensor, depth: int) -> Tensor | None:
        if made.name == "scaled_dot_product_attention":
            return self._fused(made, depth)
        multiplied = product(self.trace, made)
        if multiplied is not None or made.name == "linear":
            return self._multiplied(made, multiplied, depth)
        found = {id(t): n for t in made.inputs if (n := self.of(t, made.index, depth)) is not None}
        if not found:
            return None
        if made.changed is not None and made.changed is not tensor:
            before = self.of(tensor, made.index, depth)
            content = again(made, found, made.changed)
            before = torch.full(tensor.shape, -1.0, dtype=torch.float64) if before is None else before
            return None if content is None else overwritten(tensor, before, made.changed, content)
        if made.name in ("view_as_complex", "view_as_real"):
            numbers = next(iter(found.values()))
            return numbers[..., 0] if made.name == "view_as_complex" else numbers.unsqueeze(-1).expand(tensor.shape)
        if made.name in ("conv1d", "conv2d"):
            return self._convolved(made, found, tensor)
        if made.name in REDUCTIONS and made.name not in MOVES:
            return self._reduced(made, found, tensor)
        return again(made, found, tensor)

    def _convolved(self, made: Step, found: dict[int, Tensor], tensor: Tensor) -> Tensor:
        numbers = next(iter(found.values()))[:, :1] // CHANNELS * CHANNELS
        shape = [-1, tensor.shape[1]] + [1] * (tensor.dim() - 2)
        return (numbers + torch.arange(tensor.shape[1], dtype=torch.float64).view(1, *shape[1:])).expand(tensor.shape)

    def _reduced(self, made: Step, found: dict[int, Tensor], tensor: Tensor) -> Tensor | None:
        dim, keep = made.argument(1, "dim"), made.argument(2, "keepdim", False)
        numbers = found.get(id(made.inputs[0]))
        if numbers is None or dim is None:
            return None
        for axis in sorted({d % numbers.dim() for d in ([dim] if isinstance(dim, int) else dim)}, reverse=True):
            numbers = numbers.narrow(axis, 0, 1) if keep else numbers.select(axis, 0)
        return numbers if numbers.shape == tensor.shape else None

    def _multiplied(self, made: Step, multiplied: Product | None, depth: int) -> Tensor | None:
        if multiplied is None:  # linear
            numbers = self.of(made.argument(0, "input"), made.index, depth)
            if numbers is None:
                return None
            width = made.output.shape[-1]
            return numbers[..., :1] // CHANNELS * CHANNELS + torch.arange(width, dtype=torch.float64)
        first, second = self._operands(made)
        left, right = (self.of(t, i, depth) for t, i in (first, second))
        if left is None and right is None:
            return None
        if made.index in self.values:
            rows_left = self.values[made.index]
            return self._combined(multiplied, left, right, rows_left)
        learned = [is_learned(self.trace, t, i) for t, i in (first, second)]
        if left is None or learned[0]:
            return None if right is None else self._projected(multiplied, right, False)
        if right is None or learned[1]:
            return self._projected(multiplied, left, True)
        if made.index not in self.scores:
            return None
        if self.scores[made.index]:
            return self._spread(multiplied, left, multiplied.left_labels)
        return self._spread(multiplied, right, multiplied.right_labels)

    def _operands(self, made: Step) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
        if made.name == "sum":
            made = self.trace.made_before(made.inputs[0], made.index) or made
        first, second = made.inputs[-2:] if made.name.startswith(("baddbmm", "addmm")) else made.inputs[:2]
        return (first, made.index), (second, made.index)

    def _spread(self, made: Product, numbers: Tensor, labels: tuple[int, ...]) -> Tensor:
        """Bring an operand's numbers to the axes of the result: the first of summed axes, repeated along new ones."""
        numbers = numbers.reshape((made.left if labels is made.left_labels else made.right).shape)
        kept = [n for n in labels if n in made.out_labels]
        for axis in reversed(range(len(labels))):
            if labels[axis] not in kept:
                numbers = numbers.select(axis, 0)
        ordered = [n for n in made.out_labels if n in kept]
        numbers = numbers.permute([kept.index(n) for n in ordered])
        for axis, name in enumerate(made.out_labels):
            if name not in kept:
                numbers = numbers.unsqueeze(axis)
        return numbers.expand(made.out.shape)

    def _projected(self, made: Product, numbers: Tensor, data_left: bool) -> Tensor:
        """Number the channels of a projection anew: by the axes that its matrix has in the result."""
        mine, other = (made.left_labels, made.right_labels)[:: 1 if data_left else -1]
        matrix = made.right if data_left else made.left
        rows = self._spread(made, numbers, mine) // CHANNELS * CHANNELS
        channel = torch.zeros((1,) * made.out.dim(), dtype=torch.float64)
        for axis, name in enumerate(made.out_labels):
            size = made.out.shape[axis]
            if name in other and matrix.shape[other.index(name)] == size:
                shape = [-1 if i == axis else 1 for i in range(made.out.dim())]
                channel = channel * size + torch.arange(size, dtype=torch.float64).view(shape)
        return rows + channel

    def _combined(self, made: Product, left: Tensor | None, right: Tensor | None, rows_left: bool) -> Tensor | None:
        """Samples and tokens from the weights, channels from the values."""
        if left is None or right is None:
            return None
        spread = self._spread(made, left, made.left_labels), self._spread(made, right, made.right_labels)
        rows, channels = spread[:: 1 if rows_left else -1]
        return torch.where((rows < 0) | (channels < 0), -1.0, rows // CHANNELS * CHANNELS + channels % CHANNELS)

    def _fused(self, made: Step, depth: int) -> Tensor | None:
        q, v = (self.of(made.argument(i, name), made.index, depth) for i, name in ((0, "query"), (2, "value")))
        if q is None or v is None:
            return None
        if v.shape[-3:-2] != q.shape[-3:-2] and v.dim() > 2 and v.shape[-3] > 1:
            v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
        return q[..., :1] // CHANNELS * CHANNELS + v[..., :1, :] % CHANNELS
