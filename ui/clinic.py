"""The parts of page 7: a list of mistakes by symptom, both sides of one of them, and what changes."""

from __future__ import annotations

import streamlit as st

from mha_core.clinic import MISTAKES, SYMPTOMS
from mha_core.clinic.compare import Comparison
from mha_core.clinic.outcome import Failure, Outcome
from mha_core.clinic.record import SIDES, Side
from mha_core.errors import FieldValue
from mha_core.experiment import Experiment
from mha_core.fields import FIELDS
from ui import clinic_exercise, clinic_figures, clinic_tables, compute_clinic, controls, head_grid, panels, state

VIEWS = {"look": "look at a mistake", "exercise": "find a mistake"}
TITLES = {"wrong": "Wrong", "right": "Right"}
NUMBER = st.column_config.NumberColumn(format="%.4g")


def clinic(experiment: Experiment) -> None:
    """Draw the clinic: a chosen mistake, or the exercise."""
    columns = st.columns([3, 2, 3], gap="medium", vertical_alignment="bottom")
    with columns[0]:
        controls.choose("clinic_view", "Clinic", VIEWS)
    if state.get("clinic_view") == "exercise":
        clinic_exercise.exercise(experiment, draw)
        return
    with columns[1]:
        controls.select(
            "clinic_symptom", "What you see", {"all": "any symptom"} | {str(s): SYMPTOMS[s] for s in SYMPTOMS}
        )
    with columns[2]:
        chosen = _choose()
    draw(compute_clinic.comparison(experiment, chosen))


def _choose() -> str:
    """Offer the mistakes with the chosen symptom; gives the chosen one, or the first where it is not among them."""
    symptom = state.get("clinic_symptom")
    names = [name for name, mistake in MISTAKES.items() if symptom == "all" or symptom in mistake.symptoms]
    chosen: str = state.get("clinic_mistake") if state.get("clinic_mistake") in names else names[0]
    titles = {name: MISTAKES[name].title for name in names}
    controls.pick_one("clinic_mistake", f"Mistake (of {len(names)})", names, chosen, titles)
    return chosen


def draw(compared: Comparison) -> None:
    """Draw both sides of a mistake: lines, maps, what changes, and what to do about it."""
    _where(compared)
    for column, side in zip(st.columns(2, gap="medium"), SIDES, strict=True):
        with column:
            _lines(compared, side)
    _maps(compared)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**What changes**")
        st.markdown("\n".join(f"- {panels.plain(sentence)}" for sentence in compared.sentences))
    with right:
        _advice(compared)
    _tables(compared)


def _where(compared: Comparison) -> None:
    """Say on which experiment it is shown, where that is not the chosen one, with a button that goes there."""
    if not compared.nearest.changes:
        return
    written = [f"{n} {_written(n, value)}" for n, value in compared.nearest.changes.items()]
    needs = "; ".join(compared.nearest.reasons)
    with st.container(border=True, key="nearest"), st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            panels.plain(f"Your experiment cannot show it: it needs {needs}. Below: the nearest that can.")
            + f"  \n:small[{panels.plain(', '.join(written))}]"
        )
        st.button("Go there", key="use_nearest", on_click=state.put_and_redraw, kwargs=compared.nearest.changes)


def _written(name: str, value: FieldValue) -> str:
    """Write the value of a field for reading; long ones are cut, the lines of a text divided by a stroke."""
    words = " / ".join(value.splitlines()) if isinstance(value, str) else FIELDS[name].write(value)
    return words if len(words) <= 70 else f"{words[:69]}…"


def _lines(compared: Comparison, side: Side) -> None:
    st.markdown(f"**{TITLES[side]}**")
    st.code(clinic_tables.marked(compared, side), language="diff", wrap_lines=True)
    outcome = compared.wrong if side == "wrong" else compared.right
    if outcome.failure is not None:
        failure(outcome.failure)
    for text in outcome.warnings:
        st.caption(panels.plain(f"Warns: {text}"))


def failure(found: Failure) -> None:
    """Show what Python says where the lines stop."""
    st.code(found.text, language=None, wrap_lines=True)
    if found.explanation:
        st.caption(panels.plain(found.explanation))


def sample_of(compared: Comparison) -> int:
    """Offer the sequences of the batch, and give the chosen one."""
    batch = compared.sizes.batch
    if batch > 1 and state.get("clinic_view") == "look":  # the exercise offers them above its answer
        controls.count("sequence", f"Sequence (of {batch})", batch - 1)
    return min(int(state.get("sequence")), batch - 1)


def _maps(compared: Comparison) -> None:
    if not compared.mistake.changes_the_layer and "report" in compared.mistake.steps:
        return  # a number is wrong; there is nothing to see in the maps
    if compared.wrong.maps is None and compared.right.maps is None:
        return
    shown = clinic_figures.telling_heads(compared, sample_of(compared))
    change = clinic_figures.difference(compared, shown)
    columns = st.columns(3 if change is not None else 2, gap="medium")
    with columns[0]:
        _side_map(compared, compared.wrong, "wrong", shown)
    with columns[1]:
        _side_map(compared, compared.right, "right", shown)
    if change is not None:
        with columns[2]:
            st.caption("Wrong − right")
            head_grid.head_grid(change, key="clinic_change", on_pick=state.redraw_nothing)
    heads = compared.nearest.experiment.attention.num_heads
    if heads > len(shown.heads):
        st.caption(f"{len(shown.heads)} of {heads} heads: those that differ most.")


def _side_map(compared: Comparison, outcome: Outcome, side: Side, shown: clinic_figures.Shown) -> None:
    picture = clinic_figures.side(compared, outcome, shown)
    st.caption(f"{TITLES[side]}: weights")
    if picture is None:
        st.markdown("No maps: it stops before.")
    else:
        head_grid.head_grid(picture, key=f"clinic_{side}", on_pick=state.redraw_nothing)


def _advice(compared: Comparison) -> None:
    mistake = compared.mistake
    silent = " No error and no NaN: only a test of values tells." if compared.is_silent else ""
    found = f" The doctor's check: {mistake.check}." if mistake.check else ""
    st.markdown(f"**How to notice.** {panels.plain(mistake.notice + found + silent)}")
    st.markdown(f"**Fix.** {panels.plain(mistake.fix)}")
    st.markdown(f"**Lesson.** {panels.plain(mistake.lesson)}")


def _tables(compared: Comparison) -> None:
    left, right = st.columns([3, 2], gap="large")
    config = dict.fromkeys(("wrong", "right", "difference / right"), NUMBER)
    with left:
        st.dataframe(clinic_tables.numbers(compared), hide_index=True, column_config=config, key="clinic_numbers")
    with right:
        table = clinic_tables.gradients(compared)
        if len(table):
            st.dataframe(table, hide_index=True, column_config=config, key="clinic_gradients")
        panels.downloads(clinic_tables.both(compared), "clinic")
