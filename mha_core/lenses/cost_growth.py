"""How the cost grows with the length, and where attention overtakes the projections. Sq = Sk = S throughout.

The projections take p·S FLOPs, p = 2·(2·E·H·D + Hkv·D·(kdim + vdim)) per token (Kaplan et al. 2020, table 1); q·kᵀ and
weights·v take 4·H·D·S² over the full square (Chowdhery et al. 2022, PaLM, appendix B). They are equal at
S* = p / (4·H·D), which is 2·E for plain self-attention. Under a causal mask a query needs (S + 1) / 2 keys on average
(the half square: Kaplan et al. count attention so, 2·S·H·D per token), and they are equal at S* = 2·p / (4·H·D) - 1,
which is 4·E - 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.lenses.mask_pairs import allowed_pairs
from mha_core.sources.inputs import measure

MAX_POWER = 17  # lengths up to 131,072


@dataclass(frozen=True)
class Crossing:
    """The length S*, in tokens, from which attention takes more FLOPs than the projections; fractions are kept."""

    full_square: float
    causal_half: float
    per_token_flops: int
    formula: str = "S* = p / (4·H·D), p = 2·(2·E·H·D + Hkv·D·(kdim + vdim)); 2·p / (4·H·D) - 1 for the causal half"


@dataclass(frozen=True)
class Growth:
    """Forward matmul FLOPs at one length S, one sequence.

    Attributes:
        attention_flops: q·kᵀ and weights·v over the full square.
        needed_attention_flops: for the pairs the chosen masks allow, no padding; None with a custom mask, which has
            one size.
    """

    length: int
    projection_flops: int
    attention_flops: int
    needed_attention_flops: int | None


def projection_flops_per_token(config: AttentionConfig) -> int:
    """Count the FLOPs of q, k, v and output projection for one token that is query and key."""
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    return 2 * (2 * config.embed_dim * rows + kv_rows * (config.key_dim + config.value_dim))


def crossing(config: AttentionConfig) -> Crossing:
    """Find where attention overtakes the projections."""
    per_token = projection_flops_per_token(config)
    full = per_token / (4 * config.num_heads * config.head_dim)
    return Crossing(full, 2 * full - 1, per_token)


def growth(experiment: Experiment) -> tuple[Growth, ...]:
    """Give the cost at the powers of two, and at the experiment's own lengths."""
    config, found = experiment.attention, measure(experiment.source)
    lengths = sorted({2**power for power in range(MAX_POWER + 1)} | {found.q_len, found.k_len})
    kinds = tuple(kind for kind in experiment.mask.kinds if kind != "padding")
    spec = None if "custom" in kinds else replace(experiment.mask, kinds=kinds, custom=None)
    per_pair, per_token = 4 * config.num_heads * config.head_dim, projection_flops_per_token(config)
    return tuple(
        Growth(
            length=length,
            projection_flops=per_token * length,
            attention_flops=per_pair * length**2,
            needed_attention_flops=None if spec is None else per_pair * allowed_pairs(spec, length, length, (length,)),
        )
        for length in lengths
    )
