"""The parts of page 1: head grid and large map, what is worth noticing, and a closer look below."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import streamlit as st

from mha_core.budget import spell_bytes
from mha_core.experiment import Experiment, Run
from mha_core.lenses.cost import matmul_flops, parameter_count
from mha_core.sources.inputs import RandomSource, TextSource
from ui import compute, controls, figure_style, figures, head_grid, panels, state, theme
from ui.large_map import MapLook, draw_map, map_message
from ui.small_maps import SmallMaps
from ui.wire import short

GRID_KEY = "head_grid"
DARK = 0.2  # largest weight of maps too dark to read
STAGES = {"weights": "weights", "scores": "scores", "masked": "masked scores"}
COLOURS = {"fixed": "one scale", "head": "per head", "log": "log"}
PANELS = {
    "none": "nothing",
    "bars": "bars",
    "lines": "lines",
    "statistics": "head statistics",
    "similarity": "head similarity",
}
WHAT_TO_SEE = {
    "weights": "Each row is one query: how it spreads its attention over the keys. A row sums to 1.",
    "scores": "q·k, scaled, before the mask: what each query would like to look at, hidden keys included.",
    "masked": "What the softmax sees: hidden scores are filled before it, not zeroed after it.",
}
STATISTICS_HELP = {
    "entropy_nats": "−Σ w ln w, mean over rows",
    "relative_entropy": "entropy / ln(allowed keys): 0 one-hot, 1 uniform",
    "effective_keys": "exp(entropy): how many keys a row really uses",
    "diagonal": "weight on the token itself",
    "previous": "weight on the token before",
    "first": "weight on the first token: high in attention sinks",
    "mean_distance": "Σ w |key − query|, tokens",
    "maximum": "largest weight of a row, mean",
    "row_sum": "1, unless dropout removed weights",
}


@dataclass(frozen=True)
class Choice:
    """What of a run is looked at: the view fields, brought into the ranges of this run."""

    experiment: Experiment
    run: Run
    sample: int
    head: int
    stage: str
    colour: str
    pooling: str
    queries: tuple[int, ...]

    @property
    def scale(self) -> str:
        """How colours run: scores may be negative and have no logarithm."""
        return "fixed" if self.colour == "log" and self.stage != "weights" else self.colour

    @property
    def q_tokens(self) -> tuple[str, ...]:
        """Query tokens of the chosen sequence, padding included."""
        return self.run.sizes.q_tokens.padded[self.sample]

    @property
    def k_tokens(self) -> tuple[str, ...]:
        """Key tokens of the chosen sequence, padding included."""
        return self.run.sizes.k_tokens.padded[self.sample]


def look(experiment: Experiment) -> Choice:
    """Bring the view into the ranges of this experiment."""
    run = compute.run_experiment(experiment)
    heads, q_len = run.weights.shape[1:3]
    sample = min(state.get("sequence"), run.sizes.batch - 1)
    queries = tuple(int(number) for number in state.get("queries") if int(number) < q_len)
    return Choice(
        experiment,
        run,
        sample,
        min(state.get("head"), heads - 1),
        state.get("stage"),
        state.get("colour"),
        state.get("pooling"),
        queries or (run.sizes.q_tokens.lengths[sample] - 1,),
    )


def headline(experiment: Experiment) -> None:
    """Show sizes, cost and time in one line."""
    run, config = compute.run_experiment(experiment), experiment.attention
    sizes = run.sizes
    keys = f"{sizes.k_len} keys · " if sizes.is_cross else ""
    batch = f"{sizes.batch} sequences x " if sizes.batch > 1 else ""
    grouped = f" ({config.kv_heads} key/value)" if config.kv_heads != config.num_heads else ""
    source = experiment.source
    panels.headline(
        [
            *([] if isinstance(source, TextSource | RandomSource) else [source.title()]),
            f"{batch}{sizes.q_len} tokens · {keys}{config.num_heads} heads{grouped} x {config.head_dim}",
            f"{parameter_count(config) / 1e6:.3g} M parameters",
            f"{matmul_flops(config, sizes.batch, sizes.q_len, sizes.k_len) / 1e6:.4g} MFLOP",
            f"weights {spell_bytes(run.weights.numel() * run.weights.itemsize)}",
            f"{run.forward_ms:.1f} ms",
        ]
    )


def notices(experiment: Experiment) -> None:
    """Say what is worth noticing."""
    panels.notices(compute.notices(experiment, look(experiment).sample))


def view_controls() -> None:
    """Offer the choices of the view."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.choose("stage", "Stage", STAGES)
        controls.choose("colour", "Colours", COLOURS)
        controls.choose("panel", "A closer look", PANELS)


def maps(experiment: Experiment) -> None:
    """Draw all heads."""
    if compute.run_experiment(experiment).sizes.batch > 1:
        _choose_sequence(experiment)
    choice = look(experiment)
    grid = compute.grid(experiment, choice.sample, choice.stage, choice.pooling)
    look_ = _grid_look(choice, grid)
    head_grid.head_grid(head_grid.message(grid.maps, look_), key=GRID_KEY, on_pick=_pick)
    state.remember("q_block", grid.q_block)
    if grid.q_block > 1 or grid.k_block > 1:
        kept = "the largest" if choice.pooling == "max" else "the mean"
        st.caption(f"Pooled: a cell is {grid.q_block} x {grid.k_block} tokens and shows {kept} of them.")
        controls.choose("pooling", "A pooled cell keeps", {"max": "the peak", "mean": "the mean"})
    st.caption(WHAT_TO_SEE[choice.stage])
    if choice.stage == "weights" and choice.scale == "fixed" and max(grid.maps.high) < DARK:
        st.caption(f"All weights are below {DARK}, dark on a scale up to 1: colours per head or log show them.")


def large_map(experiment: Experiment) -> None:
    """Draw the chosen head large."""
    choice = look(experiment)
    grid = compute.grid(experiment, choice.sample, choice.stage, choice.pooling)
    large = compute.large_map(experiment, choice.sample, choice.stage, choice.head, choice.pooling)
    is_pooled = large.q_block > 1 or large.k_block > 1
    pooled = f", {large.q_block} x {large.k_block} tokens a cell" if is_pooled else ""
    ranges = {
        "fixed": figures.colour_range(choice.stage, grid.values),
        "head": figures.own_range(large.values[~large.hidden]),
    }
    low, high = ranges.get(choice.scale, (0.0, 1.0))
    span = "0.0001 to 1, log" if choice.scale == "log" else f"{low:.3g} to {high:.3g}"
    map_look = MapLook(
        title=f"Head {choice.head}: {STAGES[choice.stage]}{pooled}, colours {span}",
        unit=STAGES[choice.stage],
        table=theme.SEQUENTIAL_TABLE if choice.stage == "weights" else theme.DIVERGING_TABLE,
        scale="log" if choice.scale == "log" else "linear",
        low=low,
        high=high,
        q_labels=figures.block_labels(choice.q_tokens, large.q_block),
        k_labels=figures.block_labels(choice.k_tokens, large.k_block),
    )
    draw_map(map_message(large.values, large.hidden, map_look), key="large_map_canvas")


def closer_look(experiment: Experiment) -> None:
    """Draw the chosen panel: bars, lines, statistics or similarity."""
    if state.get("panel") in _PANELS:
        _PANELS[state.get("panel")](look(experiment))


def _choose_sequence(experiment: Experiment) -> None:
    batch = compute.run_experiment(experiment).sizes.batch
    sequence = min(state.get("sequence"), batch - 1)
    key = state.fill("sequence", sequence)
    st.number_input(
        f"Sequence (of {batch})", 0, batch - 1, sequence, key=key, on_change=state.take, args=("sequence",), width=160
    )


def _grid_look(choice: Choice, grid: SmallMaps) -> head_grid.GridLook:
    rows = sorted({query // grid.q_block for query in choice.queries})
    low, high = figures.colour_range(choice.stage, grid.values)
    combine = np.sum if state.get("combine") == "sum" else np.mean
    return head_grid.GridLook(
        table=theme.SEQUENTIAL_TABLE if choice.stage == "weights" else theme.DIVERGING_TABLE,
        scale=choice.scale,
        low=low,
        high=high,
        q_labels=figures.block_labels(choice.q_tokens, grid.q_block),
        k_labels=figures.block_labels(choice.k_tokens, grid.k_block),
        head=choice.head,
        rows=rows,
        unit=STAGES[choice.stage] if len(rows) == 1 else f"{state.get('combine')} of {len(rows)} queries",
        exact=combine(grid.values[:, rows], axis=1),
    )


def _pick() -> None:
    """Take a click in the grid: its head, and the queries chosen with it."""
    event = state.take_event(GRID_KEY, "pick")
    if event is not None:
        firsts = {int(row) * state.recall("q_block", 1) for row in event["rows"]}
        state.put(head=int(event["head"]), queries=tuple(map(str, sorted(firsts))))
        state.redraw(("maps", "large_map", "closer_look"))


def _bars(choice: Choice) -> None:
    words = [f"{short(token)} ({index})" for index, token in enumerate(choice.q_tokens)]
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        controls.pick_many("queries", "Query tokens (the maps above follow)", choice.queries, words)
    with right:
        controls.choose("combine", "Joined by their")
    weights = compute.query_rows(choice.experiment, choice.sample, choice.queries, state.get("combine"))[choice.head]
    names = ", ".join(short(choice.q_tokens[query]) for query in choice.queries[:4])
    joined = f"{state.get('combine')} of " if len(choice.queries) > 1 else ""
    title = figure_style.plain(
        f"Head {choice.head}: where {joined}{names}{' …' if len(choice.queries) > 4 else ''} looks"
    )
    labels = figures.block_labels(choice.k_tokens, 1)
    st.plotly_chart(figures.query_bars(weights, labels, choice.head, title), key="query_bars", theme=None)


def _lines(choice: Choice) -> None:
    controls.choose("line_heads", "Heads", {"chosen": "chosen head", "all": "all heads"})
    heads = [choice.head] if state.get("line_heads") == "chosen" else list(range(choice.run.weights.shape[1]))
    shown = min(figures.MAX_LINE_TOKENS, max(len(choice.q_tokens), len(choice.k_tokens)))
    weights = choice.run.weights[choice.sample, heads, :shown, :shown].float().numpy()
    q_labels, k_labels = (figures.block_labels(tokens[:shown], 1) for tokens in (choice.q_tokens, choice.k_tokens))
    title = f"Queries (left) to keys (right), {'head ' + str(choice.head) if len(heads) == 1 else 'all heads'}"
    st.plotly_chart(figures.token_lines(weights, heads, q_labels, k_labels, title), key="token_lines", theme=None)
    cut = f" of the first {shown} tokens" if shown < max(len(choice.q_tokens), len(choice.k_tokens)) else ""
    st.caption(f"The strongest {figures.MAX_LINES} weights above 0.01{cut}; thicker is stronger.")


def _statistics(choice: Choice) -> None:
    table = pd.DataFrame([asdict(stats) for stats in compute.statistics(choice.experiment, choice.sample)])
    columns = {
        name: st.column_config.NumberColumn(name.replace("_", " "), help=help_, format="%.4f")
        for name, help_ in STATISTICS_HELP.items()
    }
    st.dataframe(table, hide_index=True, column_config=columns)
    st.caption("Click a column to sort. Means over the query rows that may attend to at least one key.")


def _similarity(choice: Choice) -> None:
    alike = compute.similarity(choice.experiment, choice.sample)
    matrix = np.array(alike.matrix, dtype=np.float32)
    title = f"How alike the heads are, over {alike.rows_compared} query rows"
    with st.columns(2)[0]:
        st.plotly_chart(figures.similarity_map(matrix, alike.order, title), key="similarity", theme=None)
    st.caption(
        "1 means two heads attend alike, 0 that they never look at the same key. Alike heads stand side by side."
    )


_PANELS = {"bars": _bars, "lines": _lines, "statistics": _statistics, "similarity": _similarity}
