"""How the four projections start: a registry of initialisation schemes, and `InitSpec`, which scheme goes where.

Every scheme is torch's own initialiser with an explicit gain and generator. Each matrix draws from a generator of its
own, seeded by (seed, matrix), so that changing one target, or fusing the projections, leaves the other numbers alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mha_core.config import AttentionConfig, require_choice, require_int, require_names, require_number
from mha_core.errors import MhaError, Suggestion
from mha_core.layouts import AttentionWeights

TARGETS = ("q", "k", "v", "out")
InitBias = Literal["zeros", "torch_default"]
BASE_SCHEME = "xavier_uniform"
MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class InitSpec:
    """Which scheme fills which of the four matrices; the matrices not named get `xavier_uniform` with gain 1.

    Args:
        scheme: a name in `INIT_SCHEMES`.
        gain: factor on every weight of the targets.
        std: standard deviation of "normal" and "trunc_normal", and the value of "constant".
        targets: any subset of q, k, v, out.
        bias: "zeros", or "torch_default": uniform within 1/sqrt(fan_in).
        packed: with a fused projection, draw q, k, v as one matrix. Xavier then sees fan_out three times as large
            and its std is smaller by sqrt(2), as in `torch.nn.MultiheadAttention.in_proj_weight`.

    Raises:
        MhaError: an unknown name or a number out of range.
    """

    scheme: str = BASE_SCHEME
    gain: float = 1.0
    std: float = 0.02
    targets: tuple[str, ...] = TARGETS
    bias: InitBias = "zeros"
    packed: bool = False

    def __post_init__(self) -> None:
        require_choice("init", self.scheme, tuple(INIT_SCHEMES))
        require_number("gain", self.gain, 0.0, 1e4)
        require_number("init_std", self.std, 0.0, 1e3)
        object.__setattr__(self, "targets", require_names("init_targets", self.targets, TARGETS))
        require_choice("init_bias", self.bias, get_args(InitBias))
        if not isinstance(self.packed, bool):
            raise MhaError("init_packed", self.packed, "true or false", [Suggestion.of(init_packed=False)])


@dataclass(frozen=True)
class InitScheme:
    """One scheme: fills a matrix (out, in) in place; `fill(matrix, spec, generator)` does not apply the gain."""

    name: str
    summary: str
    source: str
    fill: Callable[[Tensor, InitSpec, torch.Generator], object]


INIT_SCHEMES: dict[str, InitScheme] = {
    scheme.name: scheme
    for scheme in (
        InitScheme(
            "xavier_uniform",
            "uniform, variance 2 / (fan_in + fan_out)",
            "Glorot & Bengio 2010, eq. 16",
            lambda matrix, spec, rng: nn.init.xavier_uniform_(matrix, generator=rng),
        ),
        InitScheme(
            "xavier_normal",
            "normal, variance 2 / (fan_in + fan_out)",
            "Glorot & Bengio 2010",
            lambda matrix, spec, rng: nn.init.xavier_normal_(matrix, generator=rng),
        ),
        InitScheme(
            "kaiming_uniform",
            "uniform, variance 2 / fan_in",
            "He et al. 2015, eq. 10",
            lambda matrix, spec, rng: nn.init.kaiming_uniform_(matrix, nonlinearity="relu", generator=rng),
        ),
        InitScheme(
            "kaiming_normal",
            "normal, variance 2 / fan_in",
            "He et al. 2015, eq. 10",
            lambda matrix, spec, rng: nn.init.kaiming_normal_(matrix, nonlinearity="relu", generator=rng),
        ),
        InitScheme(
            "normal",
            "normal with the given std",
            "GPT-2 and BERT use std 0.02",
            lambda matrix, spec, rng: nn.init.normal_(matrix, std=spec.std, generator=rng),
        ),
        InitScheme(
            "trunc_normal",
            "normal with the given std, cut at two std",
            "BERT's TensorFlow code, ViT",
            lambda matrix, spec, rng: (
                nn.init.trunc_normal_(matrix, std=spec.std, a=-2 * spec.std, b=2 * spec.std, generator=rng)
                if spec.std
                else nn.init.zeros_(matrix)
            ),
        ),
        InitScheme(
            "orthogonal",
            "rows or columns orthonormal",
            "Saxe et al. 2014",
            lambda matrix, spec, rng: nn.init.orthogonal_(matrix, generator=rng),
        ),
        InitScheme(
            "identity",
            "ones on the diagonal: the projection copies its input",
            "Le et al. 2015",
            lambda matrix, spec, rng: nn.init.eye_(matrix),
        ),
        InitScheme("ones", "every weight 1", "a mistake to look at", lambda matrix, spec, rng: nn.init.ones_(matrix)),
        InitScheme(
            "constant",
            "every weight the same given value",
            "a mistake to look at",
            lambda matrix, spec, rng: nn.init.constant_(matrix, spec.std),
        ),
        InitScheme(
            "zeros",
            "every weight 0",
            "a mistake for q, k, v; a known trick for out (Zhang et al. 2019, Fixup)",
            lambda matrix, spec, rng: nn.init.zeros_(matrix),
        ),
        InitScheme(
            "torch_default",
            "uniform within 1/sqrt(fan_in)",
            "torch.nn.Linear.reset_parameters",
            lambda matrix, spec, rng: nn.init.kaiming_uniform_(matrix, a=math.sqrt(5), generator=rng),
        ),
    )
}


def generator_for(seed: int, *names: str) -> torch.Generator:
    """Give a generator whose stream depends on the seed and the names alone, the same in every process."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def initial_weights(config: AttentionConfig, spec: InitSpec = InitSpec(), seed: int = 0) -> AttentionWeights:
    """Draw the four projections.

    Args:
        config: the sizes.
        spec: the scheme and where it goes.
        seed: 0 to 2**63 - 1.

    Returns:
        float32 weights; biases are None when `config.bias` is False.

    Raises:
        MhaError: the seed is out of range, or `spec.packed` without a fused projection.
    """
    require_int("seed", seed, 0, MAX_SEED)
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "q": (rows, config.embed_dim),
        "k": (kv_rows, config.key_dim),
        "v": (kv_rows, config.value_dim),
        "out": (config.embed_dim, rows),
    }
    matrices = {name: _draw(shape, _spec_of(name, spec), seed, name) for name, shape in shapes.items()}
    if spec.packed:
        check_packed(config, spec)
        matrices |= _draw_packed(config, spec, seed)
    biases = {f"{name}_bias": _draw_bias(shape, spec.bias, seed, name) for name, shape in shapes.items()}
    return AttentionWeights(**matrices, **(biases if config.bias else {}))


def check_packed(config: AttentionConfig, spec: InitSpec) -> None:
    """Raise MhaError where q, k and v are to be drawn as one matrix but are separate."""
    if spec.packed and config.projection != "fused":
        try_ = [Suggestion.of(projection="fused"), Suggestion.of(init_packed=False)]
        problem = "init_packed draws q, k and v as one matrix, but the projections are separate"
        raise MhaError("init_packed", True, "false when the projections are separate", try_, problem=problem)


def _spec_of(target: str, spec: InitSpec) -> InitSpec:
    return spec if target in spec.targets else InitSpec()


def _draw(shape: tuple[int, int], spec: InitSpec, seed: int, name: str) -> Tensor:
    matrix = torch.empty(shape)
    INIT_SCHEMES[spec.scheme].fill(matrix, spec, generator_for(seed, "init", name))
    return matrix.mul_(spec.gain)


def _draw_bias(shape: tuple[int, int], scheme: InitBias, seed: int, name: str) -> Tensor:
    if scheme == "zeros":
        return torch.zeros(shape[0])
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape[0]).uniform_(-bound, bound, generator=generator_for(seed, "bias", name))


def _draw_packed(config: AttentionConfig, spec: InitSpec, seed: int) -> dict[str, Tensor]:
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    packed = _draw((rows + 2 * kv_rows, config.embed_dim), spec, seed, "packed")
    return {
        name: block
        for name, block in zip("qkv", torch.split(packed, [rows, kv_rows, kv_rows]), strict=True)
        if name in spec.targets
    }
