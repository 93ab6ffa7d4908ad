"""The bench on depth: the gradient per layer of a stack, and the phase diagram of gain against depth or width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.depth import ARRANGEMENTS, EXPLODING, VANISHING, LayerGradient, PhaseCell, PhasePlan, sweep
from ui import compute, controls, jobs, laboratory_figures, panels, state

JOB = "phase"
QUANTITIES = {
    "input_gradient": "gradient of the activations",
    "weight_gradient": "gradient of the weights",
    "activation_rms": "activations",
}
UNITS = {
    "input_gradient": "norm; it enters at the output with 1",
    "weight_gradient": "norm over the four matrices",
    "activation_rms": "root mean square",
}
GAINS = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
DEPTHS = (1, 2, 4, 8, 16, 32)
WIDTH_FACTORS = (4, 8, 16, 32, 64)  # times the heads
REGIONS = (
    f"Vanishing: the norm falls below {VANISHING:g} of what entered. Exploding: it grows beyond {EXPLODING:g}, or "
    "overflows float64. Dead: exactly 0."
)


def draw(experiment: Experiment) -> None:
    """Draw both."""
    _profile(experiment)
    st.divider()
    _phase(experiment)


def _profile(experiment: Experiment) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.slide("depth_layers", "Layers L", 1, 64)
        controls.choose("depth_quantity", "Shown", QUANTITIES)
    controls.flags("depth_arrangements", "How layers are joined")
    layers, quantity = state.get("depth_layers"), state.get("depth_quantity")
    try:
        profiles = {name: compute.depth_profile(experiment, layers, name) for name in state.get("depth_arrangements")}
    except MhaError as error:
        st.warning(panels.plain(f"{error}"))
        return
    if not profiles:
        st.caption("Choose at least one way to join layers.")
        return
    curves = {
        name: ([layer.layer for layer in found], [getattr(layer, quantity) for layer in found])
        for name, found in profiles.items()
    }
    title = f"{QUANTITIES[quantity].capitalize()}, per layer"
    axes = laboratory_figures.depth_axis(layers), laboratory_figures.norm_axis(UNITS[quantity])
    figure = laboratory_figures.lines(curves, title, *axes)
    if quantity == "input_gradient":
        laboratory_figures.band(figure)
    st.plotly_chart(figure, key="depth_profile", theme=None, alt=f"{title}; the table below has the numbers.")
    st.caption(_summary(profiles))
    table = pd.DataFrame([{"joined": name} | asdict(layer) for name, found in profiles.items() for layer in found])
    with st.expander("As a table"):
        st.dataframe(table, hide_index=True, height=280, key="depth_table")
        panels.downloads(table, "depth")


def _summary(profiles: Mapping[str, Sequence[LayerGradient]]) -> str:
    """Say what arrives at the input, weakest first."""
    arrived = sorted((found[0].input_gradient, name) for name, found in profiles.items())
    said = " · ".join(f"{name}: {norm:.3g}" for norm, name in arrived)
    return panels.plain(f"Of a gradient of norm 1 at the output, this arrives at the input. {said}")


def _phase(experiment: Experiment) -> None:
    st.markdown("##### Gain against depth or width")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.choose("phase_axis", "To the right", {"depth": "depth", "width": "width E"})
        controls.select("phase_arrangement", "How layers are joined")
    plan = _plan(experiment)
    st.button("Compute", key="phase_start", on_click=_start, args=(plan,), type="primary")
    st.caption(REGIONS)

    def show(job: jobs.Job[PhaseCell]) -> None:
        _diagram(job, plan)

    jobs.watch(JOB, show)


def _plan(experiment: Experiment) -> PhasePlan:
    heads, width = experiment.attention.num_heads, experiment.attention.embed_dim
    arrangement = ARRANGEMENTS[state.get("phase_arrangement")]
    if state.get("phase_axis") == "depth":
        return PhasePlan(experiment, GAINS, DEPTHS, (width,), arrangement)
    widths = tuple(factor * heads for factor in WIDTH_FACTORS)
    return PhasePlan(experiment, GAINS, (state.get("depth_layers"),), widths, arrangement)


def _about(plan: PhasePlan) -> str:
    return f"{plan.experiment.to_json()} {plan.gains} {plan.depths} {plan.widths} {plan.arrangement}"


def _start(plan: PhasePlan) -> None:
    jobs.start(JOB, sweep(plan), plan.total, _about(plan))


def _diagram(job: jobs.Job[PhaseCell], plan: PhasePlan) -> None:
    cells = list(job.results)
    if job.about != _about(plan):
        st.warning("The experiment or the choices above have changed since this was computed.")
    if not cells:
        return
    against = "layers" if len({cell.embed_dim for cell in cells}) == 1 else "embed_dim"
    title = "Gradient that arrives at the input of the stack"
    st.plotly_chart(laboratory_figures.phase(cells, against, title), key="phase_diagram", theme=None, alt=title)
    if job.is_running:
        return
    rows = [asdict(cell) | {"log10_ratio": cell.log10_ratio, "region": cell.region} for cell in cells]
    panels.downloads(pd.DataFrame(rows), "phase")
