"""Rotary positions: pairs of channels turned by an angle that grows with the position (Su et al. 2021, RoFormer).

Axes: S sequence, D head_dim, R channels that are turned.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_positions(tensor: Tensor, theta: float, first: int = 0) -> Tensor:
    """Turn each pair of channels (d, d + D/2) by position · theta^(-2d/D).

    Args:
        tensor: (..., S, D), D even.
        theta: base of the angles.
        first: position of the first token; may be negative.

    Source: Su et al. 2021, RoFormer, eq. 34, with the half-split pairing of transformers' LLaMA and GPT-NeoX.
    """
    length, width = tensor.shape[-2:]
    positions = torch.arange(first, first + length, dtype=torch.float64)
    angles = positions[:, None] * theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (S, D/2)
    return turn_pairs(tensor, angles.cos(), angles.sin())


def turn_pairs(tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (d, d + R/2) of the first R channels; the others pass.

    Args:
        tensor: (..., S, D).
        cos, sin: of the angles, broadcastable to (..., S, R/2).
    """
    cos, sin = (table.to(tensor.device, tensor.dtype) for table in (cos, sin))
    width = 2 * cos.shape[-1]
    left, right = tensor[..., :width].chunk(2, dim=-1)
    turned = [left * cos - right * sin, left * sin + right * cos, tensor[..., width:]]
    return torch.cat(turned if width < tensor.shape[-1] else turned[:2], dim=-1)
