"""What this machine can do, and how long each step takes on it: a roofline, from about a second of measuring.

The roof is the smaller of the peak rate of a matrix product and bandwidth x arithmetic intensity, intensity being FLOPs
per byte moved (Williams, Waterman and Patterson 2009, "Roofline"). Steps are timed by the clock of the layer's `tap`:
the time of a step is the time since the step before it was shown. The shortest of many passes counts: on a machine
that others use, every longer one holds their work too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.experiment import give, precision
from mha_core.fields import TORCH_DTYPES, Dtype
from mha_core.lenses.cost import Cost, cost

PRODUCT_S, COPY_S, STEPS_S = 0.3, 0.25, 0.3  # seconds spent on each measurement, about
LARGEST_SIDE = 1024  # of the measured square matrices
COPY_BYTES = 2**26  # more than the caches of a small machine hold
MAX_PASSES = 200


@dataclass(frozen=True)
class Machine:
    """What a machine was measured to do: the rate of a matrix product and of a copy, reads and writes both counted."""

    dtype: Dtype
    matmul_gflops: float
    bandwidth_gbytes: float
    threads: int
    matrix_side: int

    @property
    def ridge(self) -> float:
        """Intensity in FLOP per byte at which memory stops being the limit."""
        return self.matmul_gflops / self.bandwidth_gbytes

    def roof_gflops(self, intensity: float) -> float:
        """Give the rate in GFLOP/s that an intensity in FLOP per byte allows."""
        return min(self.matmul_gflops, intensity * self.bandwidth_gbytes)


@dataclass(frozen=True)
class StepTime:
    """One timed step, or several that the kernel does not show apart.

    Attributes:
        step: name. flops: of its products and elementwise work, dense.
        flop_share, time_share: of the whole forward pass, 0..1.
        intensity: FLOP per byte moved; None where nothing is computed or moved.
        time_ms: shortest of the passes. gflops: rate reached.
    """

    step: str
    flops: int
    flop_share: float
    intensity: float | None
    time_ms: float
    time_share: float
    gflops: float


def measured_dtype(dtype: Dtype) -> torch.dtype:
    """Give the number format of the products that an experiment's layer computes."""
    return torch.bfloat16 if dtype == "autocast" else TORCH_DTYPES[dtype]


def _best_s(work: Callable[[], object], seconds: float) -> float:
    """Repeat work for about so many seconds, at least twice; gives its shortest time in seconds."""
    work()
    end, best = time.perf_counter() + seconds, float("inf")
    while True:
        start = time.perf_counter()
        work()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop > end:
            return best


@torch.no_grad()
def measure_product(dtype: Dtype) -> tuple[float, int]:
    """Measure the rate of a square matrix product in GFLOP/s, and the side of the matrices, small where it is slow."""
    side, rate = 128, 0.0
    while True:
        left = torch.ones(side, side, dtype=measured_dtype(dtype))
        product = torch.empty_like(left)
        rate = 2 * side**3 / _best_s(lambda: torch.mm(left, left, out=product), 0.02) / 1e9  # noqa: B023
        if side == LARGEST_SIDE or 2 * (2 * side) ** 3 / rate / 1e9 > PRODUCT_S / 4:
            break
        side *= 2
    again = 2 * side**3 / _best_s(lambda: torch.mm(left, left, out=product), PRODUCT_S) / 1e9
    return max(rate, again), side


@torch.no_grad()
def measure_bandwidth() -> float:
    """Measure what a large copy moves, read and written, in GB/s (10^9 bytes)."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _best_s(lambda: target.copy_(source), COPY_S) / 1e9


def measure_machine(dtype: Dtype) -> Iterator[Machine | float]:
    """Measure the machine in two parts: gives the bandwidth in GB/s, then all of it."""
    bandwidth = measure_bandwidth()
    yield bandwidth
    rate, side = measure_product(dtype)
    yield Machine(dtype, rate, bandwidth, torch.get_num_threads(), side)


def step_of(tensor: str, config: AttentionConfig) -> str:
    """Name the step that makes a tensor of the forward pass; steps that are done as one are one."""
    if config.kernel != "explicit" and tensor in ("scores", "masked", "weights", "dropped", "context"):
        return f"{config.kernel} kernel"
    if tensor in _STEPS:
        return _STEPS[tensor]
    # q_proj, q_view, q_heads, and those of k and v; qkv_proj, qkv_groups
    return "q, k, v projection" if config.projection == "fused" else f"{tensor[0]} projection"


_STEPS = {
    "q_rotated": "rotary",
    "k_rotated": "rotary",
    "k_shared": "share k, v",
    "v_shared": "share k, v",
    "scores": "q·kᵀ",
    "masked": "mask",
    "weights": "softmax",
    "dropped": "dropout",
    "context": "weights·v",
    "context_permuted": "join heads",
    "joined": "join heads",
    "output": "output projection",
}


@torch.no_grad()
def time_steps(experiment: Experiment) -> tuple[StepTime, ...]:
    """Run the layer for about 0.3 seconds and time its steps.

    Raises:
        MhaError: the experiment does not fit in memory.
    """
    given, passes = give(experiment), list[dict[str, float]]()
    inputs = given.inputs
    with precision(experiment):
        given.layer(inputs.query, inputs.key, inputs.value, given.mask)  # the first pass pays for what is set up once
        end = time.perf_counter() + STEPS_S
        while len(passes) < MAX_PASSES and (not passes or time.perf_counter() < end):
            clock = _Clock(experiment.attention)
            given.layer.tap = clock
            given.layer(inputs.query, inputs.key, inputs.value, given.mask)
            passes.append(clock.seconds)
    shortest = {step: min(times[step] for times in passes) * 1e3 for step in passes[0]}
    return _join(cost(experiment), shortest)


class _Clock:
    """A tap that adds up the time before each tensor under the name of its step."""

    def __init__(self, config: AttentionConfig) -> None:
        self.config, self.seconds = config, dict[str, float]()
        self.last = time.perf_counter()

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        now, step = time.perf_counter(), step_of(name, self.config)
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self.last
        self.last = time.perf_counter()
        return tensor


def _join(closed: Cost, times_ms: dict[str, float]) -> tuple[StepTime, ...]:
    """Put the times beside the rows; biases and the scale are done inside a product and count there."""
    flops, moved = dict.fromkeys(times_ms, 0), dict.fromkeys(times_ms, 0)
    for row in closed.rows:
        for step, work in _split(row.step, row.matmul_flops + row.elementwise_flops, closed, times_ms):
            flops[step] += work
            moved[step] += row.moved_bytes if row.step != "bias" else 0
    all_flops, all_ms = sum(flops.values()), sum(times_ms.values())
    return tuple(
        StepTime(
            step=step,
            flops=flops[step],
            flop_share=flops[step] / all_flops,
            intensity=flops[step] / moved[step] if flops[step] and moved[step] else None,
            time_ms=time_ms,
            time_share=time_ms / all_ms,
            gflops=flops[step] / time_ms / 1e6,
        )
        for step, time_ms in times_ms.items()
    )


def _split(step: str, flops: int, closed: Cost, timed: dict[str, float]) -> list[tuple[str, int]]:
    """Say under which timed steps a row's work is done."""
    if step in timed:
        return [(step, flops)]
    if step == "bias":
        return _split_bias(closed, timed)
    if step.endswith("projection"):
        return [("q, k, v projection", flops)]
    kernel = f"{closed.config.kernel} kernel"
    return [(kernel if kernel in timed else "q·kᵀ", flops)]


def _split_bias(closed: Cost, timed: dict[str, float]) -> list[tuple[str, int]]:
    config, sizes = closed.config, closed.sizes
    queries = sizes.batch * sizes.q_len * config.joined_dim
    outputs = sizes.batch * sizes.q_len * config.embed_dim
    keys = sizes.batch * sizes.k_len * config.kv_heads * config.head_dim
    parts = {"q projection": queries, "k projection": keys, "v projection": keys, "output projection": outputs}
    return [(step if step in timed else "q, k, v projection", count) for step, count in parts.items()]
