"""The measured part of page Cost: what this machine can do, and where the time of each step goes.

Measuring takes about a second and happens on a press of the button. What is found is kept for all sessions of the
server: the machine by number format, the steps by experiment.
"""

from __future__ import annotations

from collections.abc import Iterator

import streamlit as st

from mha_core.choices import Experiment
from mha_core.errors import MhaError
from mha_core.experiment import prepare
from mha_core.lenses import roofline
from mha_core.lenses.roofline import Machine, StepTime
from ui import compute, cost_figures, cost_tables, jobs, panels
from ui.cost import subject

JOB = "machine"
TOTAL = 3  # copy, product, steps


def machine(runs: Experiment) -> None:
    """Offer to measure, and draw what is known."""
    experiment = subject(runs)
    st.markdown("**This machine** — what bounds each step, and where the time goes")
    st.button("Measure this machine", key="measure_machine", on_click=_start, args=(experiment,))

    def draw(job: jobs.Job[str]) -> None:
        if not job.is_running:
            _draw(experiment)

    if jobs.find(JOB) is None:
        _draw(experiment)
    else:
        jobs.watch(JOB, draw)


def _start(experiment: Experiment) -> None:
    shelves = compute.shelf(f"machine {experiment.dtype}"), compute.shelf(f"steps {experiment.to_json()}")
    jobs.start(JOB, _measure(experiment, *shelves), TOTAL, experiment.to_json())


def _measure(experiment: Experiment, machines: list[Machine], steps: list[tuple[StepTime, ...]]) -> Iterator[str]:
    for found in roofline.measure_machine(experiment.dtype):
        if isinstance(found, Machine):
            machines[:] = [found]
        yield "machine"
    try:
        prepare(experiment)
    except MhaError:  # too large to run: the roof alone is shown
        return
    steps[:] = [roofline.time_steps(experiment)]
    yield "steps"


def _draw(experiment: Experiment) -> None:
    machines: list[Machine] = compute.shelf(f"machine {experiment.dtype}")
    if not machines:
        st.caption("About a second: a large matrix product, a large copy, and this layer step by step.")
        return
    found = machines[0]
    steps: list[tuple[StepTime, ...]] = compute.shelf(f"steps {experiment.to_json()}")
    times = steps[0] if steps else ()
    st.caption(
        f"{found.matmul_gflops:.3g} GFLOP/s in a product of side {found.matrix_side} ({experiment.dtype}, "
        f"threads: {found.threads}) · {found.bandwidth_gbytes:.3g} GB/s read and written by a copy · ridge at "
        f"{found.ridge:.3g} FLOP per byte: steps left of it wait for memory."
    )
    left, right = st.columns(2, gap="medium")
    with left:
        figure = cost_figures.roofline(found, _points(experiment, found, times), is_measured=bool(times))
        st.plotly_chart(figure, key="cost_roofline", theme=None, alt="Roofline of this machine with a point per step.")
    if not times:
        st.caption("The points stand where the roof allows: this layer is not timed yet, or too large to be run.")
        return
    with right:
        st.plotly_chart(cost_figures.shares(times), key="cost_shares", theme=None, alt="FLOPs and time by step.")
    panels.downloads(cost_tables.times(times), "cost_times")
    st.caption(
        "Shortest time of each step over many passes, with the machine as busy as it is now. A point above the roof "
        "found its tensors in the cache, or the machine less busy than when the roof was measured; one far below is "
        "too small to keep the machine busy."
    )


def _points(experiment: Experiment, found: Machine, times: tuple[StepTime, ...]) -> list[tuple[str, float, float]]:
    if times:
        return [(row.step, row.intensity, row.gflops) for row in times if row.intensity is not None]
    rows = compute.cost(experiment, True).rows
    intensities = [
        (row.step, (row.matmul_flops + row.elementwise_flops) / row.moved_bytes) for row in rows if row.moved_bytes
    ]
    return [(step, intensity, found.roof_gflops(intensity)) for step, intensity in intensities if intensity]
