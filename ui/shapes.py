"""The parts of page 2: flow and table of all steps, the values of one of them, the index map of the head split."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from mha_core.experiment import Experiment
from mha_core.lenses.index_map import head_of_element, landing, share_kept
from mha_core.lenses.step_maps import StepMaps, step_maps
from mha_core.lenses.steps import why
from mha_core.lenses.trace import Failure, Step, Trace
from ui import compute, controls, head_grid, panels, shapes_figures, state, theme
from ui.figures import block_labels, colour_range
from ui.shapes_figures import spelled
from ui.small_maps import fit_maps

LETTERS = {
    "B": "sequences",
    "S": "tokens",
    "Sq": "queries",
    "Sk": "keys",
    "C": "query rows of one chunk",
    "E": "embed_dim",
    "Ek": "width of the key input",
    "Ev": "width of the value input",
    "H": "heads",
    "Hkv": "key/value heads",
    "G": "query heads per key/value head",
    "D": "head_dim",
}
TOKEN_LETTERS = ("S", "Sq", "Sk", "C")
FLOW_STYLE = "<style>.stGraphVizChart svg { max-width: 100%; height: auto; }</style>"
COLUMNS_HELP = {
    "memory": "new: memory of its own; view: the memory of its input, seen otherwise; in place: its input overwritten",
    "in order": "whether the elements lie in memory in the order of the axes (contiguous)",
    "strides": "how many elements apart neighbours along each axis are",
    "bytes": "elements x bytes per element",
    "times": "how often the step was done: the chunked kernel repeats some",
}


def table_of(trace: Trace) -> pd.DataFrame:
    """Give the trace as a table, one row per step."""
    rows = []
    for step in trace.steps:
        numbers = trace.statistics(step.name)
        rows.append(
            {
                "step": step.name,
                "operation": step.operation,
                "letters": spelled(step.symbolic),
                "shape": " x ".join(map(str, step.shape)),
                "einops pattern": step.pattern,
                "dtype": step.dtype,
                "bytes": step.size_bytes,
                "memory": step.memory,
                "in order": step.is_contiguous,
                "strides": spelled(step.strides),
                "mean": None if numbers is None else numbers.mean,
                "std": None if numbers is None else numbers.std,
                "min": None if numbers is None else numbers.minimum,
                "max": None if numbers is None else numbers.maximum,
                "NaN": None if numbers is None else numbers.nan_count,
                "Inf": None if numbers is None else numbers.inf_count,
                "times": step.times,
            }
        )
    return pd.DataFrame(rows)


def _trace() -> Trace:
    return compute.trace(state.chosen_fields())


def _chosen(trace: Trace) -> Step | None:
    """Give the chosen step; where this experiment has none of that name, the last one."""
    names = [step.name for step in trace.steps]
    if not names:
        return None
    return trace.step(state.get("step") if state.get("step") in names else names[-1])


def steps(_: Experiment) -> None:
    """Draw the flow beside the table, and where it stops why it does."""
    trace = _trace()
    chosen = _chosen(trace)
    if trace.failure is not None:
        _failure(trace.failure)
    left, right = st.columns([2, 3], gap="medium")
    with left:
        st.html(FLOW_STYLE)
        st.graphviz_chart(shapes_figures.flow(trace, chosen.name if chosen else ""), width="content")
    with right:
        if trace.steps:
            table = table_of(trace)
            help_ = {name: st.column_config.Column(name, help=text) for name, text in COLUMNS_HELP.items()}
            number = st.column_config.NumberColumn(format="%.4g")
            columns = (
                help_
                | {"step": st.column_config.Column(width=130, pinned=True)}
                | dict.fromkeys(("mean", "std", "min", "max"), number)
            )
            height = 36 + 35 * len(table)
            st.dataframe(table, hide_index=True, column_config=columns, height=height, row_height=35, key="trace_table")
            panels.downloads(table, "trace")
        failing = "" if trace.failure is None else trace.failure.operation
        used = set(re.findall("[A-Z][a-z]*", f"{[step.symbolic for step in trace.steps]} {failing}"))
        st.caption(
            " · ".join(
                f"{letter} = {size:,} {LETTERS[letter]}" for letter, size in trace.letters.items() if letter in used
            )
        )


def _failure(failure: Failure) -> None:
    with st.container(border=True, key="failure"):
        st.markdown(f"**It stops at {panels.plain(failure.step)}**: {panels.plain(failure.operation)}")
        left, right = st.columns(2)
        with left:
            st.caption("What torch says there")
            st.code(failure.torch_error or "nothing: torch would not complain here", language=None, wrap_lines=True)
        with right:
            st.caption("What it means")
            st.markdown(panels.plain(str(failure.error)))


def values(_: Experiment) -> None:
    """Draw the values of the chosen step."""
    trace = _trace()
    chosen = _chosen(trace)
    if chosen is None:
        return
    names = [step.name for step in trace.steps]
    spelling = {step.name: f"{step.name}   {spelled(step.symbolic)}" for step in trace.steps}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.pick_one("step", "Step to look at", names, chosen.name, spelling)
        if trace.letters["B"] > 1:
            controls.count("sequence", f"Sequence (of {trace.letters['B']})", trace.letters["B"] - 1)
    st.markdown(f"**{panels.plain(spelled(chosen.shape))}** {panels.plain(why(chosen.name))}")
    sample = min(state.get("sequence"), trace.letters["B"] - 1)
    maps = step_maps(trace, chosen.name, sample)
    if maps is None:
        st.caption("Only the shapes were followed: the values would not fit in memory.")
        return
    words = (_tokens(trace, maps.rows, sample), _tokens(trace, maps.columns, sample))
    message, block = _picture(maps, chosen.name, *words)
    head_grid.head_grid(message, key="step_grid", on_pick=state.redraw_nothing)
    pooled = f" A cell is the mean of {block[0]} x {block[1]} values." if block != (1, 1) else ""
    st.caption(f"Rows are {maps.rows}, columns {maps.columns}.{pooled}")


def _tokens(trace: Trace, letter: str, sample: int) -> Sequence[str] | None:
    """Give the words along an axis, where its letter stands for tokens."""
    if trace.experiment is None or letter not in TOKEN_LETTERS:
        return None
    sizes = compute.run_experiment(trace.experiment).sizes
    tokens = sizes.k_tokens if letter == "Sk" else sizes.q_tokens
    return tokens.padded[sample]


def _picture(
    maps: StepMaps, name: str, row_words: Sequence[str] | None, column_words: Sequence[str] | None
) -> tuple[bytes, tuple[int, int]]:
    """Encode the maps of a step for the grid. Returns the message and the size of a pooled cell."""
    small = fit_maps(maps.values.float(), maps.allowed, "mean")
    row, column = ("token" if letter in TOKEN_LETTERS else "channel" for letter in (maps.rows, maps.columns))
    is_positive = name in ("weights", "mask")
    low, high = (0.0, 1.0) if is_positive else colour_range("scores", small.values[~small.hidden])
    rows, columns = maps.values.shape[1:]
    look = head_grid.GridLook(
        table=theme.SEQUENTIAL_TABLE if is_positive else theme.DIVERGING_TABLE,
        scale="fixed",
        low=low,
        high=high,
        q_labels=block_labels(row_words or list(map(str, range(rows))), small.q_block),
        k_labels=block_labels(column_words or list(map(str, range(columns))), small.k_block),
        head=0,
        rows=[0],
        unit=name,
        exact=small.values[:, 0],
        names=maps.names,
        nouns=(row, column),
    )
    return head_grid.message(small.maps, look), (small.q_block, small.k_block)


def index_map(experiment: Experiment) -> None:
    """Show where one element of q lands, split the right way and the tempting way."""
    run, config = compute.run_experiment(experiment), experiment.attention
    batch, length = run.sizes.batch, run.sizes.q_len
    width, heads = config.num_heads * config.head_dim, config.num_heads
    st.markdown("**Where does element (b, s, e) of q land when the channels are split into heads?**")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.count("index_b", "b, sequence", batch - 1)
        controls.count("index_s", "s, token", length - 1)
        controls.count("index_e", "e, channel", width - 1)
    limits = {"index_b": batch - 1, "index_s": length - 1, "index_e": width - 1}
    b, s, e = (min(state.get(name), highest) for name, highest in limits.items())
    found = landing((batch, length, width), heads, (b, s, e))
    right, tempting = head_of_element(length, width, heads)
    for column, key, title, which, where in zip(
        st.columns(2, gap="medium"),
        ("right", "tempting"),
        ("view(B, S, H, D).permute(0, 2, 1, 3)", "view(B, H, S, D), the tempting one"),
        (right, tempting),
        (found.right, found.tempting),
        strict=True,
    ):
        with column:
            _, head, token, channel = where
            note = f"head {head}, row {token}, channel {channel}"
            figure = shapes_figures.head_places(which.numpy(), (s, e), title, note)
            st.plotly_chart(figure, key=f"index_{key}", theme=None, alt=f"Head of each element: {title}")
            st.markdown(f"(b, s, e) = ({b}, {s}, {e}) lands at (b, h, s, d) = **{where}**")
    if heads == 1:
        st.caption("With one head there is nothing to scramble: both are the same.")
        return
    shape, change = (batch, heads, length, config.head_dim), compute.scramble(experiment)
    effect = "" if change is None else f" With the tempting view attention weights change by up to {change:.3g}."
    st.caption(
        f"Both have the shape {shape}; element {found.offset:,} in memory is followed. "
        f"{share_kept(length, width, heads):.1%} of the elements land at the same place, and nothing fails.{effect}"
    )
