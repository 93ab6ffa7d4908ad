"""The frame of every page: `begin` opens the link and draws title and sidebar, `body` draws the rest.

The body is a fragment: a control that only changes numbers reruns it alone and leaves the sidebar's widgets where they
are, which halves the time to the next picture. A page never meets an error of the user: where the choices contradict
one another or do not fit in memory, the lesson is shown on top and the page goes on with the last experiment that ran.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from ui import compute, panels, process, sidebar, state

# The default padding above the first line would push the picture off a laptop's screen.
PAGE_STYLE = ".stMainBlockContainer { padding-top: 2.6rem; padding-bottom: 3rem; }"


def begin(title: str, question: str) -> None:
    """Begin a page: its title, the one question it answers, and the sidebar."""
    if process.route_through_app():  # the first request of all reached the page directly
        st.rerun()
    process.settle()
    st.set_page_config(page_title=f"{title} · MHA Lab", layout="wide")
    st.html(f"<style>{PAGE_STYLE}</style>")
    state.open_link()
    st.subheader(f"{title} — {question}", anchor=False)
    sidebar.draw()


@st.fragment(key=state.BODY)
def body(draw: Callable[[Experiment], None]) -> None:
    """Draw the page below its title.

    Args:
        draw: gets an experiment that has been run: the chosen one, or the last one that worked.
    """
    experiment, error = _run_or_fall_back(*state.current_experiment())
    state.write_link()
    panels.link_problems(state.link_problems())
    if error is not None:
        panels.lesson(error)
    draw(experiment)


def _run_or_fall_back(experiment: Experiment, error: MhaError | None) -> tuple[Experiment, MhaError | None]:
    try:
        compute.run_experiment(experiment)
    except MhaError as run_error:
        return state.last_good(), run_error
    if error is None:
        state.keep(experiment)
    return experiment, error
