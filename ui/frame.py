"""The frame of every page: `begin` opens the link and draws title and sidebar, `part` what follows the experiment.

Each part is a fragment. A control that only changes numbers reruns the parts alone and leaves every widget where it is,
which halves the time to the next picture. A page never meets an error of the user: where the choices contradict one
another or do not fit in memory, the lesson is shown on top and the page goes on with the last experiment that ran.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import streamlit as st

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment
from ui import compute, compute_model, panels, process, sidebar, state

# The default padding above the first line would push the picture off a laptop's screen.
PAGE_STYLE = ".stMainBlockContainer { padding-top: 2.6rem; padding-bottom: 3rem; }"


def begin(
    title: str,
    question: str,
    *,
    below: str | None = None,
    pin: Callable[[], dict[str, FieldValue]] = dict,
    follows: bool = True,
) -> None:
    """Begin a page: its title, the one question it answers, what is wrong with the choices, and the sidebar.

    Args:
        below: what the page shows where the choices cannot be run; None where it is the last experiment that could.
        pin: gives the fields that have a value of their own on this page, whatever is chosen elsewhere.
        follows: whether the page shows the experiment; one that does not has no controls for it.
    """
    if process.route_through_app():  # the first request of all reached the page directly
        st.rerun()
    process.settle()
    st.set_page_config(page_title=f"{title} · MHA Lab", layout="wide")
    st.html(f"<style>{PAGE_STYLE}</style>")
    state.open_link(title)
    state.pin(pin())
    st.subheader(f"{title} — {question}", anchor=False)
    if not follows:
        _fragment("notes", lambda: panels.link_problems(state.link_problems()))
        return
    with contextlib.suppress(MhaError):  # a model that cannot be had is told by the notes
        compute_model.ready(state.get("source"), state.get("model"))
    sidebar.draw()
    _fragment("notes", lambda: _notes(below))


def part(name: str, draw: Callable[[Experiment], None]) -> None:
    """Draw a part of the page that follows the experiment.

    Args:
        name: unique on the page; view controls name the parts they change. Parts are redrawn in the order of the page.
        draw: gets an experiment that has been run: the chosen one, or the last one that worked.
    """

    def draw_what_runs() -> None:
        draw(_what_runs()[0])

    _fragment(name, draw_what_runs)


def part_alone(name: str, draw: Callable[[], None]) -> None:
    """Draw a part of the page that does not follow the experiment; otherwise as `part`."""
    _fragment(name, draw)


def _fragment(name: str, draw: Callable[[], None]) -> None:
    def draw_and_link() -> None:
        state.write_link()
        draw()

    state.add_part(name)
    st.fragment(draw_and_link, key=name)()


def _notes(below: str | None) -> None:
    error = _what_runs()[1]
    panels.link_problems(state.link_problems())
    if error is not None:
        last = "the last experiment that could be run" if state.has_run() else "the default experiment"
        panels.lesson(error, below or last)


def _what_runs() -> tuple[Experiment, MhaError | None]:
    """Give the chosen experiment, or the last one that worked and the reason why the chosen one does not."""
    try:
        compute_model.ready(state.get("source"), state.get("model"))
        experiment, error = state.current_experiment()
        compute.run_experiment(experiment)
    except MhaError as run_error:
        return state.last_good(), run_error
    if error is None:
        state.keep(experiment)
    return experiment, error
