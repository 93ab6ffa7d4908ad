"""Cached answers: an experiment in, data out. The only cache decorators of the product.

Keys are experiments and small words, never arrays: Streamlit samples large arrays when it hashes them and then gives
wrong answers. Large runs have a cache of their own with two places, so that what is kept stays bounded; all work goes
through one gate, so that a heavy request cannot take every core.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import streamlit as st
import torch
from numpy.typing import NDArray

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment, Run, needed_bytes, prepare, run
from mha_core.lenses import benchmark, cost_growth, findings, flop_truth, head_stats, init_effects
from mha_core.lenses import cost as cost_lens
from mha_core.lenses.bench_plan import Measurement
from mha_core.lenses.broken_trace import trace_fields
from mha_core.lenses.cost import Cost
from mha_core.lenses.depth import ARRANGEMENTS, LayerGradient, profile
from mha_core.lenses.grad_schemes import SchemeRow, compare_schemes
from mha_core.lenses.head_stats import HeadSimilarity, HeadStats
from mha_core.lenses.index_map import scrambled_weights
from mha_core.lenses.init_effects import PackedRow, ScalePoint, TargetRow
from mha_core.lenses.pooling import Pooling, pool_maps
from mha_core.lenses.trace import Trace
from mha_core.lenses.verdicts import Judged, judged
from ui.small_maps import SmallMaps, fit_maps

SMALL_RUN_BYTES = 16 * 2**20  # the default layer alone takes 8 MiB while it runs
STAGES = {"weights": "weights", "scores": "scores", "masked": "masked_scores"}  # attribute of a run
GRID_SIDES = (256, 192, 128, 96, 64, 48, 32, 16)
MAP_SIDE = 128  # cells a side of the large map: 82 kB
CELLS = 16 * 256 * 256  # of all heads together, at most
GATE = threading.Semaphore(os.cpu_count() or 1)
T = TypeVar("T")
_KEY: dict[str | type[Any], Callable[[Any], Any]] = {Experiment: Experiment.to_json}


def run_experiment(experiment: Experiment) -> Run:
    """Run an experiment, or give the run that is kept. Its tensors are shared: read them only.

    Raises:
        MhaError: the sizes do not fit; asked before anything is computed.
    """
    sizes = prepare(experiment)
    need = needed_bytes(experiment, sizes)
    return _small_run(experiment) if need <= SMALL_RUN_BYTES else _large_run(experiment)


@st.cache_resource(max_entries=32, show_spinner=False, hash_funcs=_KEY)
def _small_run(experiment: Experiment) -> Run:
    with GATE:
        return run(experiment)


@st.cache_resource(max_entries=2, show_spinner="Computing a long sequence", hash_funcs=_KEY)
def _large_run(experiment: Experiment) -> Run:
    with GATE:
        return run(experiment)


def stage_of(result: Run, stage: str, sample: int) -> torch.Tensor:
    """Give the tensor a stage shows, for one sequence: (H, Sq, Sk)."""
    tensor: torch.Tensor = getattr(result, STAGES[stage])  # by name: scores are computed only when they are looked at
    return tensor[sample]


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def grid(experiment: Experiment, sample: int, stage: str, pooling: str) -> SmallMaps:
    """Encode the maps of all heads, pooled as little as their share of bytes allows."""
    result = run_experiment(experiment)
    with GATE:
        maps, allowed = stage_of(result, stage, sample), shown_cells(result, stage, sample)
        heads, longest = maps.shape[0], max(maps.shape[-2:])
        sides = [side for side in GRID_SIDES if side == GRID_SIDES[-1] or heads * min(side, longest) ** 2 <= CELLS]
        return fit_maps(maps, allowed, _pooling(pooling), sides)


@dataclass(frozen=True)
class LargeMap:
    """One head's map for the large picture: values, which cells are hidden, and the block each cell stands for."""

    values: NDArray[np.float32]
    hidden: NDArray[np.bool_]
    q_block: int
    k_block: int


def large_map(experiment: Experiment, sample: int, stage: str, head: int, pooling: str) -> LargeMap:
    """Give one head's map, pooled to at most 128 cells a side."""
    result = run_experiment(experiment)
    one_head = stage_of(result, stage, sample)[head : head + 1]
    pooled = pool_maps(one_head, shown_cells(result, stage, sample), MAP_SIDE, _pooling(pooling))
    return LargeMap(pooled.values[0].numpy(), pooled.hidden[0].numpy(), pooled.q_block, pooled.k_block)


def shown_cells(result: Run, stage: str, sample: int) -> torch.Tensor | None:
    """Give the mask of one sequence, (1, Sq or 1, Sk); None where the stage hides nothing: scores before the mask."""
    if result.mask is None or stage == "scores":
        return None
    return result.mask[min(sample, len(result.mask) - 1)]


def _pooling(pooling: str) -> Pooling:
    return "mean" if pooling == "mean" else "max"


def query_rows(experiment: Experiment, sample: int, queries: tuple[int, ...], combine: str) -> NDArray[np.float32]:
    """Give the weights of some query tokens, joined by their sum or mean: (H, Sk)."""
    rows = run_experiment(experiment).weights[sample, :, list(queries)].float()  # (H, R, Sk)
    return (rows.sum(1) if combine == "sum" else rows.mean(1)).numpy()


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def statistics(experiment: Experiment, sample: int) -> tuple[HeadStats, ...]:
    """Describe every head."""
    return head_stats.head_stats(run_experiment(experiment), sample)


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def similarity(experiment: Experiment, sample: int) -> HeadSimilarity:
    """Compare all heads."""
    result = run_experiment(experiment)
    with GATE:
        return head_stats.head_similarity(result, sample)


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def notices(experiment: Experiment, sample: int) -> tuple[findings.Finding, ...]:
    """Find what is worth noticing."""
    return findings.find(run_experiment(experiment), sample, statistics(experiment, sample))


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def cost(experiment: Experiment, input_gradient: bool) -> Cost:
    """Work out what each step costs; nothing is run.

    Raises:
        MhaError: the custom mask does not fit.
    """
    return cost_lens.cost(experiment, input_gradient=input_gradient)


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def cost_truth(experiment: Experiment, input_gradient: bool) -> tuple[flop_truth.Count, ...]:
    """Count the products in other ways."""
    with GATE:
        return flop_truth.truth(cost(experiment, input_gradient))


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def cost_growth_of(experiment: Experiment) -> tuple[cost_growth.Growth, ...]:
    """Give the cost at many lengths."""
    return cost_growth.growth(experiment)


@st.cache_resource(max_entries=64, show_spinner=False)
def shelf(name: str) -> list[Any]:
    """Give a place, at first empty, where a measurement is kept for all sessions of this server."""
    return []


def trace(fields: Mapping[str, FieldValue]) -> Trace:
    """Trace what the fields describe, also where it cannot run. Its tensors are shared: read them only."""
    try:
        experiment = Experiment.from_fields(fields)
        is_small = needed_bytes(experiment, prepare(experiment)) <= SMALL_RUN_BYTES
    except MhaError:
        is_small = False
    key = json.dumps(fields, ensure_ascii=False)
    return _small_trace(key) if is_small else _large_trace(key)


@st.cache_resource(max_entries=16, show_spinner=False)
def _small_trace(fields_json: str) -> Trace:
    return trace_fields(_from_json(fields_json))


@st.cache_resource(max_entries=2, show_spinner=False)
def _large_trace(fields_json: str) -> Trace:
    with GATE:
        return trace_fields(_from_json(fields_json))


def _from_json(fields_json: str) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(fields_json).items()}


@st.cache_resource(max_entries=128, show_spinner=False, hash_funcs=_KEY)
def scramble(experiment: Experiment) -> float | None:
    """Give the largest change of a weight when heads are split by the view alone; None where it would take long."""
    if needed_bytes(experiment, prepare(experiment)) > SMALL_RUN_BYTES:
        return None
    with GATE:
        right, scrambled = scrambled_weights(experiment)
        return (right - scrambled).abs().max().item()


@st.cache_resource(max_entries=32, show_spinner="Comparing all variants", hash_funcs=_KEY)
def agreement(experiment: Experiment, dtypes: tuple[str, ...]) -> tuple[Measurement, ...]:
    """Compare every way of writing the experiment with the float64 reference, one forward pass each."""
    return _in_turns(benchmark.measure(benchmark.agreement(experiment, dtypes)))


def _in_turns(steps: Iterator[T]) -> tuple[T, ...]:
    """Take every step; between two of them others get their turn."""
    rows: list[T] = []
    while True:
        with GATE:
            row = next(steps, None)
        if row is None:
            return tuple(rows)
        rows.append(row)


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def depth_profile(experiment: Experiment, layers: int, arrangement: str) -> tuple[LayerGradient, ...]:
    """Follow one backward pass through a stack.

    Raises:
        MhaError: it does not fit in memory.
    """
    with GATE:
        return profile(experiment, layers, ARRANGEMENTS[arrangement])


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def targets(experiment: Experiment) -> tuple[TargetRow, ...]:
    """Put the experiment's scheme on every subset of the matrices."""
    with GATE:
        return init_effects.compare_targets(experiment)


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def scale_against_width(experiment: Experiment) -> tuple[ScalePoint, ...]:
    """Compare the scale 1/√D with none."""
    with GATE:
        return init_effects.scale_against_width(experiment)


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_KEY)
def packed_against_blocks(experiment: Experiment) -> tuple[PackedRow, PackedRow]:
    """Compare Xavier per block with Xavier on the packed matrix."""
    with GATE:
        return init_effects.packed_against_blocks(experiment)


@st.cache_resource(max_entries=4, show_spinner=False, hash_funcs=_KEY)  # each keeps a score matrix
def backward_pass(experiment: Experiment, loss: str) -> Judged:
    """Run one backward pass and judge it. Its tensors are shared: read them only.

    Raises:
        MhaError: the loss cannot be had, or it does not fit in memory.
    """
    with GATE:
        return judged(experiment, loss)


@st.cache_resource(max_entries=32, show_spinner="Running every scheme", hash_funcs=_KEY)
def scheme_rows(experiment: Experiment, loss: str) -> tuple[SchemeRow, ...]:
    """Run every initialisation scheme on the same input and seed."""
    return _in_turns(compare_schemes(experiment, loss))
