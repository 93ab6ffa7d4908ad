"""What every variant is compared with: the explicit equation in float64 with the same weights, and how near is near.

The reference goes through the queries in blocks, so that lengths whose S x S matrix does not fit still have one. A
tolerance is stated with its reason; the difference is the largest one of any number.

Axes: B batch, H heads, Sq queries, Sk keys, E embed_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig
from mha_core.fields import TORCH_DTYPES, Dtype
from mha_core.init_schemes import generator_for
from mha_core.layouts import AttentionWeights
from mha_core.lenses.bench_variants import Contender, Material

BLOCK_BYTES = 2**26  # of one block's scores
SAFETY = 4.0  # roundings of projections, scores, weights and output, one after another
HALVES = (torch.bfloat16, torch.float16)
COMPARED_AT_ONCE = 2**22  # numbers
TOLERANCE_REASON = (
    "Tolerance: 4 (u (1 + 2 m) + a √E) times the largest number of the reference. u is the unit roundoff of the number "
    "format: 6e-8 for float32, 4e-3 for bfloat16 and autocast. m is the largest |score|: a rounded score is off by u "
    "times itself, and the softmax turns that into a relative error of the weights. a is the roundoff of the running "
    "sums over E channels (H·D where that is more), float32 at least, and such errors grow with √E."
)


@dataclass(frozen=True, eq=False)
class Reference:
    """Output (B, Sq, E), weights (B, H, Sq, Sk) and gradients where asked for, float64; the largest |score|."""

    output: Tensor
    weights: Tensor | None
    gradients: AttentionWeights | None
    largest_score: float


def cotangent_for(material: Material) -> Tensor:
    """Draw what the output is multiplied with before it is summed to a loss, N(0, 1), float32 (B, Sq, E)."""
    return torch.randn(material.inputs.query.shape, generator=generator_for(0, "cotangent"))


def reference(
    material: Material, config: AttentionConfig, cotangent: Tensor | None, *, keep_weights: bool
) -> Reference:
    """Compute the reference of one layer, with gradients of sum(output · cotangent) where a cotangent is given."""
    config = replace(config, projection="separate", head_split="view", kernel="explicit", dropout=0.0)
    layer = MultiHeadAttention.from_config(config, material.weights.map(lambda tensor: tensor.double()))
    layer.fill, scores = material.fill, [0.0]

    def look(name: str, tensor: Tensor) -> Tensor:
        if name == "scores":
            scores.append(tensor.detach().abs().max().item())
        return tensor

    layer.tap = look
    inputs, mask = material.inputs.to(torch.float64), material.mask
    outputs: list[Tensor] = []
    kept: list[Tensor] = []
    with torch.set_grad_enabled(cotangent is not None):
        q, k, v = layer.project(inputs.query, inputs.key, inputs.value)
        cells = q.shape[0] * q.shape[1] * k.shape[2]
        step = max(1, BLOCK_BYTES // (8 * cells))
        for first in range(0, q.shape[2], step):
            rows = slice(first, first + step)
            mask_rows = mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]
            context, weights = layer.attend(q[:, :, rows], k, v, mask_rows)
            output = layer.merge(context)
            if cotangent is not None:
                torch.autograd.backward(output, cotangent[:, rows].double(), retain_graph=True)
            outputs.append(output.detach())
            kept += [weights.detach()] if keep_weights and weights is not None else []
    gradients = None if cotangent is None else _gradients(layer)
    return Reference(torch.cat(outputs, 1), torch.cat(kept, 2) if kept else None, gradients, max(scores))


def _gradients(layer: MultiHeadAttention) -> AttentionWeights:
    def gradient(fc: torch.nn.Linear) -> tuple[Tensor, Tensor | None]:
        assert fc.weight.grad is not None
        return fc.weight.grad, None if fc.bias is None else fc.bias.grad

    pairs = [gradient(fc) for fc in (layer.wq, layer.wk, layer.wv, layer.fc_out)]
    return AttentionWeights(*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))


def largest_difference(got: Tensor, expected: Tensor) -> float:
    """Give max |got - expected|; NaN in the same places is no difference, NaN in one alone is an infinite one."""
    largest = 0.0
    pairs = [torch.split(tensor.detach().flatten(), COMPARED_AT_ONCE) for tensor in (got, expected)]
    for one, other in zip(*pairs, strict=True):
        difference = (one.double() - other).abs()
        odd = difference.isnan()
        if odd.any():
            if not torch.equal(one.isnan(), other.isnan()):
                return torch.inf
            difference = difference.masked_fill(odd, 0.0)
        largest = max(largest, difference.max().item())
    return largest


def relative_tolerance(dtype: Dtype, largest_score: float, channels: int) -> float:
    """Give the tolerance relative to the largest number compared; see `TOLERANCE_REASON`."""
    rounded_to = torch.bfloat16 if dtype == "autocast" else TORCH_DTYPES[dtype]
    summed_in = torch.float32 if rounded_to in HALVES else rounded_to
    roundoff, of_sums = (torch.finfo(kind).eps / 2 for kind in (rounded_to, summed_in))
    return SAFETY * (roundoff * (1 + 2 * largest_score) + of_sums * math.sqrt(channels))


@dataclass(frozen=True)
class Differences:
    """Largest differences from the reference, and what is allowed; gradients relative to their largest number.

    Attributes:
        output, output_allowed: of the output.
        weights: of the attention weights, or None where there are none to compare; `weights_allowed`.
        gradients: of the gradients of the parameters, or None without a backward pass; `gradients_allowed`.
    """

    output: float
    output_allowed: float
    weights: float | None
    weights_allowed: float
    gradients: float | None
    gradients_allowed: float

    @property
    def agrees(self) -> bool:
        """Whether all of them are within what is allowed."""
        is_near = self.output <= self.output_allowed
        is_near &= self.weights is None or self.weights <= self.weights_allowed
        return is_near and (self.gradients is None or self.gradients <= self.gradients_allowed)


def compare(contender: Contender, truth: Reference, cotangent: Tensor | None) -> Differences:
    """Run a contender once, backward too where there is a cotangent, and compare it with the reference."""
    output, weights = contender.infer()
    channels = max(contender.config.embed_dim, contender.config.joined_dim)
    allowed = relative_tolerance(contender.dtype, truth.largest_score, channels)
    gradients = None
    difference = largest_difference(output, truth.output)
    if cotangent is not None and truth.gradients is not None:
        output, found = contender.learn(cotangent)
        difference = max(difference, largest_difference(output, truth.output))
        gradients = _gradient_difference(contender.named(found), truth.gradients)
    return Differences(
        difference,
        allowed * _largest(truth.output),
        None if weights is None or truth.weights is None else largest_difference(weights, truth.weights),
        allowed,
        gradients,
        allowed,
    )


def _gradient_difference(found: AttentionWeights, truth: AttentionWeights) -> float:
    """Relative to the largest gradient of all: that of k's bias is zero in theory and noise in practice."""
    names = [field.name for field in fields(truth) if getattr(truth, field.name) is not None]
    scale = max(_largest(getattr(truth, name)) for name in names)
    difference = max(largest_difference(getattr(found, name), getattr(truth, name)) for name in names)
    return difference / scale if scale else difference


def _largest(tensor: Tensor) -> float:
    return tensor.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
