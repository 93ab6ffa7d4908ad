"""What the layer costs, in closed form. 1 multiply-add = 2 FLOPs.

Only the matrix products of the forward pass and the parameter count so far; elementwise work is not counted here.

Letters: B batch, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

from mha_core.config import AttentionConfig


def parameter_count(config: AttentionConfig) -> int:
    """Count the weights and biases of the four projections."""
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = 2 * rows * config.embed_dim + kv_rows * (config.key_dim + config.value_dim)
    biases = rows + 2 * kv_rows + config.embed_dim
    return matrices + (biases if config.bias else 0)


def matmul_flops(config: AttentionConfig, batch: int, q_len: int, k_len: int) -> int:
    """Count the FLOPs of the forward matrix products: q, k, v, output projection, q kᵀ and weights · v.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1, with the full S x S square.
    """
    rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    projections = 2 * q_len * config.embed_dim * rows * 2 + 2 * k_len * kv_rows * (config.key_dim + config.value_dim)
    attention = 2 * (2 * config.num_heads * q_len * k_len * config.head_dim)
    return batch * (projections + attention)
