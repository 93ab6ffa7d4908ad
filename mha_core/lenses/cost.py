"""What the layer costs in all, in closed form: FLOPs, parameters, bytes. Nothing is run or allocated.

The rows, their formulas and the conventions are in cost_rows.py. Not here: memory by number format (cost_memory.py),
growth with the length (cost_growth.py), other counts (flop_truth.py), time (roofline.py).

Letters: B batch, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.fields import TORCH_DTYPES, Dtype
from mha_core.lenses.cost_rows import CostRow, CostSizes, cost_rows
from mha_core.lenses.mask_pairs import allowed_pairs
from mha_core.sources.inputs import measure

PAIR_PRODUCTS = ("q·kᵀ", "weights·v")  # the two products whose cost follows the pairs
SUMMED = tuple(field.name for field in fields(CostRow) if field.type == "int")


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


@dataclass(frozen=True)
class Cost:
    """What a layer costs.

    Attributes:
        rows: one per step, in order.
        totals: the sum of every number of the rows, under the rows' own names.
        input_gradient: whether backward also reaches the layer's input.
        parameters: weights and biases. parameter_bytes: their bytes.
        inference_bytes: bytes of activations when nothing is kept for backward: mask and softmax work in place.
        attention_share: share of q kᵀ and weights · v in the forward matmul FLOPs, 0..1.
    """

    config: AttentionConfig
    sizes: CostSizes
    dtype: Dtype
    input_gradient: bool
    rows: tuple[CostRow, ...]
    totals: dict[str, int]
    parameters: int
    parameter_bytes: int
    inference_bytes: int
    attention_share: float


def activation_itemsize(dtype: Dtype) -> int:
    """Give the bytes per number of activations; under autocast every step of the layer gives bfloat16."""
    return 2 if dtype == "autocast" else TORCH_DTYPES[dtype].itemsize


def cost_sizes(experiment: Experiment) -> CostSizes:
    """Find the sizes of an experiment, of any length: nothing is allocated but one number per query.

    Raises:
        MhaError: the input has no token, or the custom mask does not fit.
    """
    found, spec = measure(experiment.source), experiment.mask
    pairs = allowed_pairs(spec, found.q_len, found.k_len, found.k_tokens.lengths)
    itemsize = activation_itemsize(experiment.dtype)
    return CostSizes(found.batch, found.q_len, found.k_len, pairs, bool(spec.kinds), itemsize)


def cost(experiment: Experiment, *, input_gradient: bool = True) -> Cost:
    """Work out what an experiment's layer costs, without running it.

    Args:
        experiment: of any size; the memory budget does not matter here.
        input_gradient: whether backward also reaches the layer's input.

    Raises:
        MhaError: the input has no token, or the custom mask does not fit.
    """
    config, sizes = experiment.attention, cost_sizes(experiment)
    rows = cost_rows(config, sizes, input_gradient=input_gradient)
    totals = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
    attention = sum(row.matmul_flops for row in rows if row.step in PAIR_PRODUCTS)
    return Cost(
        config=config,
        sizes=sizes,
        dtype=experiment.dtype,
        input_gradient=input_gradient,
        rows=rows,
        totals=totals,
        parameters=parameter_count(config),
        parameter_bytes=parameter_count(config) * experiment.torch_dtype.itemsize,
        inference_bytes=sum(row.bytes for row in rows if not row.overwrites),
        attention_share=attention / totals["matmul_flops"],
    )
