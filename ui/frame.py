"""The frame of every page: `begin` opens the link, draws title and sidebar, and gives the experiment to show.

A page never meets an error of the user: where the choices contradict one another or do not fit in memory, the lesson
is shown on top and the page goes on with the last experiment that could be run.
"""

from __future__ import annotations

import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from ui import compute, panels, process, sidebar, state

# The default padding above the first line would push the picture off a laptop's screen.
PAGE_STYLE = ".stMainBlockContainer { padding-top: 2.6rem; padding-bottom: 3rem; }"


def begin(title: str, question: str) -> Experiment:
    """Begin a page.

    Args:
        title: name of the page. question: the one question it answers.

    Returns:
        An experiment that has been run: the chosen one, or the last one that worked.
    """
    if process.route_through_app():  # the first request of all reached the page directly
        st.rerun()
    process.settle()
    st.set_page_config(page_title=f"{title} · MHA Lab", layout="wide")
    st.html(f"<style>{PAGE_STYLE}</style>")
    state.open_link()
    experiment, error = state.current_experiment()
    experiment, error = _run_or_fall_back(experiment, error)
    state.write_link()
    st.subheader(f"{title} — {question}", anchor=False)
    panels.link_problems(state.link_problems())
    if error is not None:
        panels.lesson(error)
    sidebar.draw()
    return experiment


def _run_or_fall_back(experiment: Experiment, error: MhaError | None) -> tuple[Experiment, MhaError | None]:
    try:
        compute.run_experiment(experiment)
    except MhaError as run_error:
        return state.last_good(), run_error
    if error is None:
        state.keep(experiment)
    return experiment, error
