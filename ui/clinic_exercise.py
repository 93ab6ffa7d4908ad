"""The exercise of page 7: the lenses of a broken layer, five candidates, and then the answer."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from mha_core.clinic import MISTAKES
from mha_core.clinic.compare import Comparison
from mha_core.clinic.exercise import CANDIDATES, Exercise, plant
from mha_core.experiment import Experiment
from ui import clinic_figures, clinic_tables, compute_clinic, controls, head_grid, panels, state

PROBES = {
    "none": "nothing",
    "token": "token",
    "sequence": "sequence",
    "padding": "padding",
    "again": "run again",
}
WHAT_MOVES = {
    "token": "The last real token of every sequence was given another embedding. These outputs moved:",
    "sequence": "Every token of the last sequence was given another embedding. These outputs moved:",
    "padding": "Two tokens that nobody may look at were appended. These outputs moved:",
    "again": "The same input once more, after eval(). These outputs moved:",
}
VALUE = {"value": st.column_config.NumberColumn(format="%.4g")}


def exercise(experiment: Experiment, draw_answer: Callable[[Comparison], None]) -> None:
    """Draw a broken layer whose mistake is not named, the candidates, and the answer once one is chosen."""
    planted = plant(state.get("clinic_seed"), MISTAKES)
    compared = compute_clinic.comparison(experiment, planted.planted, ("sequences",))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**One mistake is in this layer. Which?** {panels.plain(_setting(compared))}")
        st.button("Another one", key="another", on_click=_another)
    left, right = st.columns(2, gap="medium")
    with left:
        _maps(compared)
        _probe(compared)
    with right:
        _guess(planted)
        _lenses(compared)
    if state.get("clinic_guess"):
        _answer(planted, compared, draw_answer)


def _setting(compared: Comparison) -> str:
    """Say what the layer runs on."""
    chosen, sizes = compared.nearest.experiment, compared.sizes
    config = chosen.attention
    shared = f" ({config.kv_heads} key/value)" if config.kv_heads != config.num_heads else ""
    keys = f", {sizes.k_len} keys" if sizes.is_cross else ""
    parts = [
        f"{sizes.batch} x {sizes.q_len} tokens{keys}",
        f"{config.num_heads} heads{shared} x {config.head_dim}",
        f"mask {' and '.join(chosen.mask.kinds) or 'none'}",
        chosen.dtype,
        *([f"dropout {config.dropout:g}"] if config.dropout else []),
        *([f"positions {chosen.positions}"] if chosen.positions != "none" else []),
    ]
    return " · ".join(parts)


def _another() -> None:
    state.put(clinic_seed=state.get("clinic_seed") + 1, clinic_guess=0, clinic_probe="none")
    state.redraw(("clinic",))


def _maps(compared: Comparison) -> None:
    outcome = compared.wrong
    if outcome.failure is not None:
        st.markdown("It stops:")
        st.code(outcome.failure.text, language=None, wrap_lines=True)
        return
    if compared.sizes.batch > 1:
        controls.count("sequence", f"Sequence (of {compared.sizes.batch})", compared.sizes.batch - 1)
    picture = clinic_figures.side(compared, outcome, clinic_figures.all_heads(outcome, int(state.get("sequence"))))
    if picture is not None:
        head_grid.head_grid(picture, key="clinic_broken", on_pick=state.redraw_nothing)


def _probe(compared: Comparison) -> None:
    if compared.wrong.failure is not None:
        return
    controls.choose("clinic_probe", "Change", PROBES)
    probe = state.get("clinic_probe")
    if probe == "none":
        return
    picture = clinic_figures.moved(compared, probe)
    if picture is None:
        st.caption("This layer cannot be asked that here.")
        return
    st.caption(WHAT_MOVES[probe])
    head_grid.head_grid(picture, key="clinic_moved", on_pick=state.redraw_nothing)


def _guess(planted: Exercise) -> None:
    titles = [MISTAKES[name].title for name in planted.candidates]
    guess = state.get("clinic_guess")
    index = guess - 1 if 0 < guess <= CANDIDATES else None
    st.radio(
        "It is",
        range(1, CANDIDATES + 1),
        index,
        format_func=lambda number: panels.plain(titles[number - 1]),
        key=state.fill("clinic_guess", guess if index is not None else None),
        on_change=state.take,
        args=("clinic_guess",),
    )


def _lenses(compared: Comparison) -> None:
    reported = [name for _, name, _ in compared.mistake.reports]
    table = clinic_tables.seen(compared.wrong, reported)
    if len(table):
        st.dataframe(table, hide_index=True, column_config=VALUE, key="clinic_seen")
        panels.downloads(table, "clinic_exercise")
    with st.expander("Tensors on the way"):
        st.dataframe(clinic_tables.facts(compared.wrong), hide_index=True, key="clinic_facts")


def _answer(planted: Exercise, compared: Comparison, draw_answer: Callable[[Comparison], None]) -> None:
    guessed = MISTAKES[planted.candidates[state.get("clinic_guess") - 1]]
    if guessed is compared.mistake:
        st.success(panels.plain(f"Right: {compared.mistake.title}."))
    else:
        st.error(panels.plain(f"Not “{guessed.title}”. It is: {compared.mistake.title}."))
    draw_answer(compared)
