"""The training race on page 3: what races, the curves while they run, the verdicts, and a replay of the maps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import streamlit as st

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment
from mha_core.init_schemes import TARGETS
from mha_core.lenses import training
from mha_core.lenses.training import Progress, Track
from mha_core.lenses.training_model import RACERS, RaceSetting, check_race
from mha_core.lenses.training_reasons import Verdict, explain
from mha_core.lenses.training_tasks import TASKS
from ui import controls, head_grid, jobs, panels, state, theme, training_figures
from ui.training_figures import name_of

JOB = "race"
OF_VIEW = {
    "task": "race_task",
    "length": "race_length",
    "vocab": "race_vocab",
    "embed_dim": "race_width",
    "num_heads": "race_heads",
    "layers": "race_layers",
    "steps": "race_steps",
    "batch": "race_batch",
    "learning_rate": "race_rate",
    "layer_norm": "race_norm",
}  # field of a setting -> field of the view
PER_ROW = 3
KINDS = {
    "untrained": "not trained",
    "diverged": "diverged",
    "all_zero": "gradient exactly 0",
    "uniform": "uniform maps",
    "equal_heads": "all heads equal",
    "learned": "learned",
    "unfinished": "not there yet",
}


@dataclass(frozen=True)
class Entry:
    """What is raced: the setting and the schemes."""

    setting: RaceSetting
    racers: tuple[str, ...]

    def write(self) -> str:
        """Write it, to be kept with its job."""
        return json.dumps([asdict(self.setting), self.racers])

    @classmethod
    def read(cls, text: str) -> Entry:
        """Read what `write` wrote."""
        setting, racers = json.loads(text)
        return cls(RaceSetting(**setting), tuple(racers))


def race(experiment: Experiment) -> None:
    """Offer a race, and show the one that is running or done."""
    st.caption(
        "A tiny model learns a task, once from each initialisation of its four attention matrices. All else is alike: "
        "the other parameters, the sequences, the optimiser."
    )
    left, right = st.columns([3, 1])
    with left:
        controls.choose("race_task", "Task")
        st.caption(panels.plain(_describe()))
    with right:
        controls.number("race_steps", "Steps", step=100)
    controls.flags("race_schemes", "Schemes")
    with st.expander("Model and training"):
        _small_controls()
    entry = _entry(experiment)
    st.button("Race", key="race_start", on_click=_start, args=(entry,), disabled=entry is None, type="primary")

    def draw(job: jobs.Job[Progress]) -> None:
        _results(job, entry)

    jobs.watch(JOB, draw)


def _describe() -> str:
    task = TASKS[state.get("race_task")]
    return f"{task.summary} To solve it, a model has to {task.needs}."


def _small_controls() -> None:
    with st.container(horizontal=True):
        controls.number("race_length", "Question, tokens")
        controls.number("race_vocab", "Vocabulary")
        controls.number("race_width", "Width E")
        controls.number("race_heads", "Heads H")
        controls.number("race_layers", "Layers")
        controls.number("race_batch", "Batch")
        controls.number("race_rate", "Learning rate", step=0.001)
    controls.switch("race_norm", "Layer norm")
    st.caption(
        "Token and position embeddings, causal attention with a residual connection, a linear read-out; no "
        "feed-forward part. normal and trunc_normal have std 0.02, constant is 0.02 everywhere; biases start at 0. "
        "The seed is the experiment's."
    )


def _entry(experiment: Experiment) -> Entry | None:
    """Read the controls; what cannot be raced is explained, with buttons for what can."""
    racers = tuple(name for name in RACERS if name in state.get("race_schemes"))
    try:
        values = {name: state.get(field) for name, field in OF_VIEW.items()}
        setting = RaceSetting(seed=experiment.seed, **values)
        check_race(setting, racers)
    except MhaError as error:
        _refuse(error)
        return None
    return Entry(setting, racers)


def _refuse(error: MhaError) -> None:
    with st.container(border=True, key="race_refused"):
        st.error(panels.plain(error.problem + "."))
        with st.container(horizontal=True):
            for number, suggestion in enumerate(error.try_):
                changes: dict[str, FieldValue] = {OF_VIEW[name]: value for name, value in suggestion.changes}
                text, key = panels.plain(suggestion.text), f"race_try_{number}"
                st.button(text, key=key, on_click=state.put_and_redraw, kwargs=changes)


def _start(entry: Entry) -> None:
    steps = training.race(entry.setting, entry.racers)
    jobs.start(JOB, steps, training.total(entry.setting, entry.racers), entry.write())


def _results(job: jobs.Job[Progress], entry: Entry | None) -> None:
    results, raced = list(job.results), Entry.read(job.about)
    if entry is not None and entry != raced:
        st.warning("The choices above have changed since this race.")
    if not results:
        return
    tracks = training.tracks(results)
    _curves(tracks, raced.setting)
    if not job.is_running:
        _verdicts(explain(raced.setting, results), raced.setting)
        panels.downloads(pd.DataFrame(training.rows(results)), "race")
    _replay(tracks, raced.setting, is_running=job.is_running)


def _curves(tracks: Sequence[Track], setting: RaceSetting) -> None:
    matrix = state.get("race_matrix")
    matrices = TARGETS if matrix == "all" else (matrix,)
    figures = (
        ("race_loss", training_figures.loss(tracks, setting.steps), "Loss over the steps"),
        ("race_accuracy", training_figures.accuracy(tracks, setting.steps, setting.chance), "Accuracy over the steps"),
        ("race_gradient", training_figures.gradient(tracks, setting.steps, matrices), "Gradient norm over the steps"),
    )
    for column, (key, figure, what) in zip(st.columns(3), figures, strict=True):
        with column:
            st.plotly_chart(figure, key=key, theme=None, alt=f"{what}, one line for each scheme.")
    with st.container(horizontal=True, horizontal_alignment="right"):
        controls.choose("race_matrix", "Gradient norm of")


def _verdicts(verdicts: Sequence[Verdict], setting: RaceSetting) -> None:
    st.markdown("##### Why")
    table = pd.DataFrame(
        {
            "scheme": [name_of(verdict.racer) for verdict in verdicts],
            "accuracy, %": [100 * verdict.accuracy for verdict in verdicts],
            "chance, %": [round(100 * setting.chance, 1)] * len(verdicts),
            "steps to 95 %": ["not reached" if v.steps_to_goal is None else str(v.steps_to_goal) for v in verdicts],
            "verdict": [KINDS[verdict.kind] for verdict in verdicts],
        }
    )
    looks = {name: st.column_config.NumberColumn(format="%.1f") for name in ("accuracy, %", "chance, %")}
    st.dataframe(table, hide_index=True, height="content", column_config=looks, key="race_table")
    for verdict in verdicts:
        st.markdown(f"**{panels.plain(name_of(verdict.racer))}** — {panels.plain(verdict.sentence)}")


def _replay(tracks: Sequence[Track], setting: RaceSetting, *, is_running: bool) -> None:
    """Show the maps of every racer on the probe, at the chosen step; while the race runs, at the latest."""
    recorded = [stop.step for stop in max(tracks, key=lambda track: len(track.stops)).stops]
    step = recorded[-1]
    st.markdown("##### How the maps form")
    if not is_running and len(recorded) > 1:
        step = max(stop for stop in recorded if stop <= state.get("race_step"))
        key = state.fill("race_step", step)
        st.select_slider("Step", recorded, step, key=key, on_change=state.take, args=("race_step",))
    labels = training.probe_labels(setting)
    for first in range(0, len(tracks), PER_ROW):
        for column, track in zip(st.columns(PER_ROW), tracks[first : first + PER_ROW], strict=False):
            with column:
                _maps(track.at(step), labels, setting)
    asked = "" if setting.task == "induction" else " From the separator on, each query is to say the next token."
    st.caption(
        f"Rows are queries, columns keys, labelled with the tokens of one sequence that is never trained on.{asked}"
    )


def _maps(stop: Progress, labels: Sequence[str], setting: RaceSetting) -> None:
    st.markdown(f"**{panels.plain(name_of(stop.racer))}**, step {stop.step}: {stop.accuracy:.1%} right")
    maps = stop.maps.reshape(-1, *stop.maps.shape[2:])  # (layers, H, S, S) -> (layers * H, S, S)
    hidden = np.broadcast_to(~np.tril(np.ones(maps.shape[1:], dtype=bool)), maps.shape)
    encoded = head_grid.encode_maps(maps, hidden)
    assert encoded is not None, "32 x 32 cells a head always fit"
    row = setting.length
    layer = [f"layer {number}, " if setting.layers > 1 else "" for number in range(setting.layers)]
    look = head_grid.GridLook(
        table=theme.SEQUENTIAL_TABLE,
        scale="fixed",
        low=0.0,
        high=1.0,
        q_labels=labels,
        k_labels=labels,
        head=0,
        rows=[row],
        unit="weight",
        exact=maps[:, row],
        names=[f"{prefix}head {head}" for prefix in layer for head in range(setting.num_heads)],
    )
    head_grid.head_grid(head_grid.message(encoded, look), key=f"race_maps_{stop.racer}", on_pick=state.redraw_nothing)
