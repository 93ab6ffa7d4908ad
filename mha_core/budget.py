"""How much memory one experiment may take: asked before anything is allocated.

The limit is 1 GiB, or MHA_LAB_MEMORY_BUDGET in bytes. What is counted is what a run keeps: weights of the layer,
inputs, q, k, v, scores, attention weights, context and output.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from mha_core.config import AttentionConfig
from mha_core.errors import MhaError, Suggestion

DEFAULT_BUDGET_BYTES = 2**30
KEPT_MATRICES = 3  # scores, weights, and one S x S matrix while the softmax is formed


def limit_bytes(variable: str, default_bytes: int) -> int:
    """Read a limit from an environment variable.

    Raises:
        MhaError: the variable is not a number.
    """
    setting = os.environ.get(variable, str(default_bytes))
    if not setting.isdecimal():
        raise MhaError(variable, setting, "a number of bytes, in digits")
    return int(setting)


def budget_bytes() -> int:
    """Give the limit in bytes."""
    return limit_bytes("MHA_LAB_MEMORY_BUDGET", DEFAULT_BUDGET_BYTES)


def run_bytes(config: AttentionConfig, batch: int, q_len: int, k_len: int, itemsize: int = 4) -> int:
    """Estimate the bytes a run keeps, for sizes B, Sq, Sk and bytes per number."""
    width, joined, kv_width = config.embed_dim, config.joined_dim, config.kv_heads * config.head_dim
    layer = 2 * width * joined + kv_width * (config.key_dim + config.value_dim)
    tokens = 2 * q_len * (width + joined) + k_len * (config.key_dim + config.value_dim + 2 * kv_width + 2 * joined)
    return itemsize * (2 * layer + batch * (tokens + KEPT_MATRICES * config.num_heads * q_len * k_len))


def check_budget(
    config: AttentionConfig, batch: int, q_len: int, k_len: int, itemsize: int = 4, try_: Iterable[Suggestion] = ()
) -> None:
    """Refuse sizes that would not fit.

    Raises:
        MhaError: field "q_len", with the bytes it would take.
    """
    need, limit = run_bytes(config, batch, q_len, k_len, itemsize), budget_bytes()
    if need <= limit:
        return
    matrix = itemsize * batch * config.num_heads * q_len * k_len
    problem = (
        f"this needs {need:,} bytes ({spell_bytes(need)}), more than the budget of {spell_bytes(limit)}: one score "
        f"matrix alone, batch {batch} x {config.num_heads} heads x {q_len:,} x {k_len:,} x {itemsize} bytes, is "
        f"{matrix:,} bytes and grows with the square of the length"
    )
    raise MhaError("q_len", need, f"at most {limit:,} bytes", try_, problem=problem)


def spell_bytes(size_bytes: float) -> str:
    """Write bytes with a binary unit: 1536 -> "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
