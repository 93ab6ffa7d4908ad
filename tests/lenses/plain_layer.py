"""Attention written plainly in float64, head by head, with autograd: gradients to compare with.

It shares with the product the drawn numbers alone (embeddings and initial weights); there is no layer, kernel or mask
of the product in it. Axes: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mha_core import Experiment, run
from mha_core.init_schemes import initial_weights
from tests.lenses.reference import allowed_cells

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PlainPass:
    """The loss; values and gradients of parameters and of q, k, v, scores, weights, context, output, by name."""

    loss: Tensor
    parameters: dict[str, Pair]
    tensors: dict[str, Pair]


def turn(heads: Tensor, theta: float, first: int) -> Tensor:
    """Rotary positions as complex numbers: channel d and d + D/2 are one."""
    half = heads.shape[-1] // 2
    places = torch.arange(heads.shape[-2], dtype=torch.float64) + first
    angles = places[:, None] * theta ** (-2 * torch.arange(half, dtype=torch.float64) / heads.shape[-1])
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def plain_pass(experiment: Experiment, loss: Callable[[Tensor], Tensor]) -> PlainPass:
    """Run an experiment forward and backward (fill "zero", no dropout)."""
    config, done = experiment.attention, run(experiment)
    drawn = initial_weights(config, experiment.init, experiment.seed)
    names = ("q", "k", "v", "out", "q_bias", "k_bias", "v_bias", "out_bias")
    w = {n: getattr(drawn, n).double().requires_grad_() for n in names if getattr(drawn, n) is not None}
    depth, group = len(w["q"]) // config.num_heads, config.num_heads // config.kv_heads

    def project(x: Tensor, name: str) -> Tensor:
        flat = x.double() @ w[name].T + (w[f"{name}_bias"] if config.bias else 0)
        return torch.stack(flat.split(depth, dim=-1), dim=1)

    q, k, v = (
        project(x, n) for x, n in zip((done.inputs.query, done.inputs.key, done.inputs.value), "qkv", strict=True)
    )
    if config.rope_theta is not None:
        q, k = turn(q, config.rope_theta, k.shape[2] - q.shape[2]), turn(k, config.rope_theta, 0)
    cells = torch.from_numpy(np.ascontiguousarray(allowed_cells(done)))[:, None]
    owner = [head // group for head in range(config.num_heads)]
    scale = 1 / math.sqrt(depth) if config.scale is None else config.scale
    scores = torch.einsum("bhid,bhjd->bhij", q, k[:, owner]) * scale
    top = scores.detach().masked_fill(~cells, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    powers = torch.where(cells, (scores - top).clamp(max=0).exp(), 0.0)
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    context = torch.einsum("bhij,bhjd->bhid", weights, v[:, owner])
    output = torch.cat(context.unbind(1), -1) @ w["out"].T + (w["out_bias"] if config.bias else 0)
    tensors = {"q": q, "k": k, "v": v, "scores": scores, "weights": weights, "context": context, "output": output}
    value = loss(output)
    gradients = torch.autograd.grad(value, [*w.values(), *tensors.values()])
    pairs = [(t.detach(), g) for t, g in zip([*w.values(), *tensors.values()], gradients, strict=True)]
    return PlainPass(
        value.detach(), dict(zip(w, pairs[: len(w)], strict=True)), dict(zip(tensors, pairs[len(w) :], strict=True))
    )
