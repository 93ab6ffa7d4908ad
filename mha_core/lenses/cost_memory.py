"""What the layer keeps in memory, by number format: the attention matrix, the key/value cache, activations, parameters.

All closed forms; nothing is allocated. One layer is meant everywhere: a model multiplies by its number of layers.

Letters: B batch, Sq queries, Sk keys, H heads, Hkv key/value heads, D head_dim, C context: cached tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.errors import MhaError
from mha_core.fields import TORCH_DTYPES, Dtype
from mha_core.lenses.cost import activation_itemsize, cost_sizes, matmul_flops, parameter_count
from mha_core.lenses.cost_rows import CostSizes, cost_rows

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MAX_CONTEXT = 2**24


def kv_cache_bytes(config: AttentionConfig, batch: int, context: int, itemsize: int) -> int:
    """Count the bytes of cached keys and values, 2·B·C·Hkv·D·itemsize.

    Source: Shazeer 2019, "Fast Transformer Decoding", section 3; Ainslie et al. 2023, "GQA", section 2.2 for Hkv.
    """
    return 2 * batch * context * config.kv_heads * config.head_dim * itemsize


def attention_matrix_bytes(config: AttentionConfig, sizes: CostSizes, itemsize: int) -> int:
    """Count the bytes of one matrix of scores or weights, B·H·Sq·Sk·itemsize, whatever the kernel keeps of it."""
    return config.num_heads * sizes.all_pairs * itemsize


@dataclass(frozen=True)
class Memory:
    """Bytes of one number format.

    Attributes:
        itemsize: bytes per number of activations; parameters under autocast take 4.
        activation_bytes: every step's tensor, as kept for backward. inference_bytes: with steps in place.
        kv_cache_bytes: keys and values of `context` tokens.
    """

    dtype: Dtype
    itemsize: int
    parameter_bytes: int
    attention_matrix_bytes: int
    activation_bytes: int
    inference_bytes: int
    kv_cache_bytes: int


def check_context(context: int) -> int:
    """Give the context back.

    Raises:
        MhaError: not a whole number from 1 to 16,777,216.
    """
    if not 1 <= context <= MAX_CONTEXT:
        raise MhaError("context", context, f"a whole number from 1 to {MAX_CONTEXT:,}")
    return context


def memory_by_dtype(experiment: Experiment, context: int | None = None) -> tuple[Memory, ...]:
    """Give the bytes of an experiment in every number format.

    Args:
        experiment: of any size.
        context: C, cached tokens; None means Sk.

    Raises:
        MhaError: as `mha_core.lenses.cost.cost`, or the context is out of range.
    """
    config, found = experiment.attention, cost_sizes(experiment)
    tokens = check_context(found.k_len if context is None else context)
    answers = []
    for dtype in DTYPES:
        itemsize = activation_itemsize(dtype)
        rows = cost_rows(config, replace(found, itemsize=itemsize))
        answers.append(
            Memory(
                dtype=dtype,
                itemsize=itemsize,
                parameter_bytes=parameter_count(config) * TORCH_DTYPES[dtype].itemsize,
                attention_matrix_bytes=attention_matrix_bytes(config, found, itemsize),
                activation_bytes=sum(row.bytes for row in rows),
                inference_bytes=sum(row.bytes for row in rows if not row.overwrites),
                kv_cache_bytes=kv_cache_bytes(config, found.batch, tokens, itemsize),
            )
        )
    return tuple(answers)


@dataclass(frozen=True)
class Grouping:
    """What sharing key/value heads changes: one number of them and what the layer then costs."""

    kv_heads: int
    kind: str
    parameters: int
    matmul_flops: int
    kv_cache_bytes: int
    is_chosen: bool


def groupings(experiment: Experiment, context: int | None = None) -> tuple[Grouping, ...]:
    """Give one row for every Hkv that divides H, smallest first; FLOPs of the attention itself do not change.

    Raises:
        MhaError: as `memory_by_dtype`.
    """
    config, found = experiment.attention, cost_sizes(experiment)
    tokens = check_context(found.k_len if context is None else context)
    heads = config.num_heads
    answers = []
    for kv_heads in (count for count in range(1, heads + 1) if heads % count == 0):
        grouped = replace(config, num_kv_heads=kv_heads)
        answers.append(
            Grouping(
                kv_heads=kv_heads,
                kind="multi-head" if kv_heads == heads else "multi-query" if kv_heads == 1 else "grouped",
                parameters=parameter_count(grouped),
                matmul_flops=matmul_flops(grouped, found.batch, found.q_len, found.k_len),
                kv_cache_bytes=kv_cache_bytes(grouped, found.batch, tokens, found.itemsize),
                is_chosen=kv_heads == config.kv_heads,
            )
        )
    return tuple(answers)
