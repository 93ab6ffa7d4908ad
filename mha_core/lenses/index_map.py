"""Where one element lands when the channels are split into heads: view + permute, beside the tempting view alone.

`q.view(B, S, H, D).permute(0, 2, 1, 3)` and `q.view(B, H, S, D)` have the same shape. The second cuts the memory of a
sequence into H runs of S/H tokens instead of cutting every token's channels, so a "head" sees whole tokens of one part
of the text. Nothing fails, and the values are others.

Letters: B batch, S sequence, H heads, D head_dim, E = H·D the channels that are split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.config import require_int
from mha_core.errors import MhaError
from mha_core.experiment import Experiment, give
from mha_core.kernels import attention_scores, attention_weights, share_heads
from mha_core.lenses.trace import Recorder, forward
from mha_core.rotary import rotate_positions

Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Landing:
    """Where element (b, s, e) of (B, S, E) lands in (B, H, S, D).

    Attributes:
        offset: its place in memory, in elements; both ways of splitting start from it.
        right: (b, h, s, d) after view(B, S, H, D).permute(0, 2, 1, 3).
        tempting: (b, h, s, d) after view(B, H, S, D).
    """

    offset: int
    right: Place
    tempting: Place


def landing(shape: tuple[int, int, int], heads: int, place: tuple[int, int, int]) -> Landing:
    """Follow one element.

    Args:
        shape: (B, S, E). heads: H, divides E. place: (b, s, e).

    Raises:
        MhaError: E is not divisible by the heads, or the place lies outside.
    """
    _, length, width = shape
    head_dim = _head_dim(width, heads)
    for name, value, size in zip("bse", place, shape, strict=True):
        require_int(name, value, 0, size - 1)
    b, s, e = place
    offset = (b * length + s) * width + e
    _, within = divmod(offset, length * width)
    head, rest = divmod(within, length * head_dim)
    return Landing(offset, (b, e // head_dim, s, e % head_dim), (b, head, rest // head_dim, rest % head_dim))


def head_of_element(length: int, width: int, heads: int) -> tuple[Tensor, Tensor]:
    """Give the head in which each element of one sequence lands, the right way and the tempting way.

    Returns:
        Two integer tensors (S, E).
    """
    head_dim = _head_dim(width, heads)
    right = (torch.arange(width) // head_dim).expand(length, width)
    tempting = torch.arange(length * width).view(length, width) // (length * head_dim)
    return right, tempting


def token_of_row(length: int, width: int, heads: int) -> Tensor:
    """Give the token from which the first channel of each head's row comes, split the tempting way. Returns (H, S)."""
    head_dim = _head_dim(width, heads)
    return torch.arange(0, length * width, head_dim).view(heads, length) // width


def share_kept(length: int, width: int, heads: int) -> float:
    """Give the share of elements that land at the same (h, s, d) both ways."""
    head_dim = _head_dim(width, heads)
    elements = torch.arange(length * width)
    right = elements.view(length, heads, head_dim).permute(1, 0, 2)
    return (right == elements.view(heads, length, head_dim)).double().mean().item()


@torch.no_grad()
def scrambled_weights(experiment: Experiment) -> tuple[Tensor, Tensor]:
    """Compute the weights of an experiment with heads split the right way, and with the view alone.

    Returns:
        Two tensors (B, H, Sq, Sk), rotary positions and mask applied in both.

    Raises:
        MhaError: the experiment cannot run.
    """
    given, config, recorder = give(experiment), experiment.attention, Recorder()
    forward(experiment, given, recorder)

    def weights(q: Tensor, k: Tensor) -> Tensor:
        if config.rope_theta is not None:
            q = rotate_positions(q, config.rope_theta, first=k.shape[-2] - q.shape[-2])
            k = rotate_positions(k, config.rope_theta)
        scores = attention_scores(q, share_heads(k, config.num_heads), config.softmax_scale)
        return attention_weights(scores, given.mask, experiment.mask.fill)

    def scrambled(heads: Tensor) -> Tensor:
        return heads.permute(0, 2, 1, 3).reshape(heads.shape)  # (B, S, H*D) in memory, seen as (B, H, S, D)

    q, k = recorder.tensors["q_heads"], recorder.tensors["k_heads"]
    return weights(q, k), weights(scrambled(q), scrambled(k))


def _head_dim(width: int, heads: int) -> int:
    if width % heads:
        raise MhaError("num_heads", heads, f"a divisor of the width {width}")
    return width // heads
