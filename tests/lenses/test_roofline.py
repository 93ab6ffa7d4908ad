"""What is measured: the roof's arithmetic, time put under the right step, work put beside it, none of it lost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch import Tensor

from mha_core import Experiment, MhaError, kernels
from mha_core.lenses import roofline
from mha_core.lenses.cost import cost
from mha_core.lenses.roofline import Machine, measure_machine, time_steps


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields({"source": "random", "embed_dim": 24, "num_heads": 6} | fields)


def test_the_roof() -> None:
    machine = Machine("float32", matmul_gflops=60.0, bandwidth_gbytes=12.0, threads=2, matrix_side=512)
    assert machine.ridge == 5.0
    assert [machine.roof_gflops(intensity) for intensity in (0.5, 5.0, 80.0)] == [6.0, 60.0, 60.0]


@pytest.mark.parametrize("dtype", ["float32", "autocast"])
def test_a_machine_is_measured_in_about_a_second(dtype: Any) -> None:
    start = time.perf_counter()
    bandwidth, machine = measure_machine(dtype)
    assert time.perf_counter() - start < 20  # others may use the machine
    assert isinstance(machine, Machine)
    assert machine.bandwidth_gbytes == bandwidth
    assert 0.1 < machine.bandwidth_gbytes < 2000
    assert 0.01 < machine.matmul_gflops < 100_000


@pytest.mark.parametrize(("seconds", "side"), [(0.002, 1024), (0.5, 128)])
def test_rates_are_work_over_time(seconds: float, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of our own; a machine that is slow gets small matrices."""
    monkeypatch.setattr(roofline, "_best_s", lambda work, _: (work(), seconds)[1])
    assert roofline.measure_product("float32") == (pytest.approx(2 * side**3 / seconds / 1e9), side)
    assert roofline.measure_bandwidth() == pytest.approx(2 * 2**26 / seconds / 1e9)


def test_the_shortest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 5.0, 7.0, 9.0, 14.0])  # end at 10; 3, 2 and 5 seconds
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: next(ticks))
    assert roofline._best_s(lambda: None, 10.0) == 2.0


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, "q projection,k projection,v projection,q·kᵀ,softmax,weights·v,join heads,output projection"),
        (
            {"projection": "fused", "num_kv_heads": 2, "positions": "rotary", "mask": ("causal",), "dropout": 0.1},
            "q, k, v projection,rotary,share k, v,q·kᵀ,mask,softmax,dropout,weights·v,join heads,output projection",
        ),
        ({"projection": "fused", "k_len": 7}, "q, k, v projection,q·kᵀ,softmax,weights·v,join heads,output projection"),
        (
            {"embed_dim": 25, "head_size": 7},
            "q projection,k projection,v projection,q·kᵀ,softmax,weights·v,join heads,output projection",
        ),
        ({"kernel": "sdpa"}, "q projection,k projection,v projection,sdpa kernel,join heads,output projection"),
        (
            {"kernel": "chunked", "q_len": 300, "mask": ("causal",)},
            "q projection,k projection,v projection,chunked kernel,join heads,output projection",
        ),
    ],
    ids=str,
)
def test_steps_are_named_and_no_work_is_lost(
    fields: dict[str, Any], steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "STEPS_S", 0.02)
    chosen = experiment(**fields)
    found, totals = time_steps(chosen), cost(chosen).totals
    assert ",".join(row.step for row in found) == steps
    assert sum(row.flops for row in found) == totals["matmul_flops"] + totals["elementwise_flops"]
    assert sum(row.flop_share for row in found) == pytest.approx(1)
    assert sum(row.time_share for row in found) == pytest.approx(1)
    assert all(row.time_ms > 0 for row in found)
    for row in found:
        assert row.gflops == pytest.approx(row.flops / row.time_ms / 1e6)


def test_intensity_is_work_over_bytes() -> None:
    """B 1, Sq = Sk 7, E 24, float32, no bias: a projection reads and writes x, W and q once."""
    rows = {row.step: row for row in cost(experiment(batch=1, q_len=7, bias=False)).rows}
    assert rows["q projection"].moved_bytes == 4 * (7 * 24 + 24 * 24 + 7 * 24)
    assert rows["q·kᵀ"].moved_bytes == 4 * (7 * 24 + 7 * 24 + 6 * 7 * 7)
    assert rows["softmax"].moved_bytes == 4 * 2 * 6 * 7 * 7
    assert rows["scale"].moved_bytes == 0  # done inside the product


def test_time_goes_to_the_step_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax that waits for 150 ms takes most of the time, and no other step does."""
    honest = kernels.softmax_weights

    def slow(*arguments: Any, **options: Any) -> Tensor:
        time.sleep(0.15)
        return honest(*arguments, **options)

    monkeypatch.setattr(kernels, "softmax_weights", slow)
    monkeypatch.setattr(roofline, "STEPS_S", 0.4)
    found = {row.step: row for row in time_steps(experiment())}
    assert found["softmax"].time_ms > 149
    assert found["softmax"].time_share > 0.5


def test_what_does_not_fit_is_not_run() -> None:
    with pytest.raises(MhaError, match="more than the budget"):
        time_steps(experiment(q_len=65_536))
