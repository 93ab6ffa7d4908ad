"""Page Real models: all heads of a trained model as small maps, and one layer with all that page Attention has."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import streamlit as st

from mha_core.errors import FieldValue
from mha_core.experiment import Experiment
from mha_core.lenses.real_heads import LayerView
from mha_core.sources.models.text import TextReader
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import unedited
from ui import attention, checkpoint, compute_model, controls, head_grid, panels, real_effects, state, theme

GRID_KEY = "all_heads_grid"
BELOW = "the last model and text that worked, if there were any"
VIEWS = {"heads": "all heads, one layer", "effects": "edits and their effects", "checkpoint": "a checkpoint file"}
SORTS = {
    "layer": "layer by layer",
    "induction": "induction",
    "previous": "previous token",
    "first": "first token (sink)",
    "diagonal": "own token",
    "maximum": "sharpest",
    "relative_entropy": "most spread",
}
PER_LINE = 12  # small maps side by side, where they are not layer by layer
SAME_WEIGHTS, SAME_OUTPUT = 1e-5, 1e-4  # differences up to which two float32 computations are the same


def views_of(experiment: Experiment) -> tuple[PretrainedSource, int, tuple[LayerView, ...]]:
    """Give what is known of all layers: model and text, the sequence that is looked at, and each layer on it."""
    source = experiment.source
    assert isinstance(source, PretrainedSource)  # the page pins it
    sample = min(state.get("sequence"), source.read().tokens.batch - 1)
    text = compute_model.text_of(source)
    return text, sample, compute_model.all_layers(text, sample)


def has_model(experiment: Experiment) -> bool:
    """Say whether there is a trained model to show: where none can be had, the last experiment has another source."""
    return isinstance(experiment.source, PretrainedSource)


def headline(experiment: Experiment) -> None:
    """Say what model it is, and how far our layers are from its own."""
    if not has_model(experiment):
        return
    source, _, views = views_of(experiment)
    model = source.loaded()
    stacks = [f"{len(views)} attention layers x {model.num_heads} heads"]
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    tokens = source.read().tokens
    batch = f"{tokens.batch} sequences x " if tokens.batch > 1 else ""
    panels.headline([model.title, *stacks, f"{parameters / 1e6:.4g} M parameters", f"{batch}{tokens.length} tokens"])
    _agreement(views)


def _agreement(views: tuple[LayerView, ...]) -> None:
    ours = [view.difference for view in views if view.difference.weights is not None]
    weights = max((d.weights or 0.0 for d in ours), default=math.nan)
    output = max((d.output or 0.0 for d in ours), default=math.nan)
    others = {view.difference.problem for view in views if view.difference.weights is None}
    if ours:
        same = weights <= SAME_WEIGHTS and output <= SAME_OUTPUT
        said = (
            f"Our layer, given each of {len(ours)} layers' weights and real input, computes "
            f"{'the same' if same else 'something else'}: the largest difference is {_spell(weights)} in a weight and "
            f"{_spell(output)} in the output."
        )
        (st.caption if same else st.warning)(panels.plain(said))
    for problem in sorted(others):
        st.warning(panels.plain(f"Some layers are shown as the model computes them, not recomputed: {problem}."))


def _spell(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"


def view_controls() -> None:
    """Offer what the page shows."""
    controls.choose("real_view", "Look at", VIEWS)


def pinned() -> dict[str, FieldValue]:
    """Give what this page shows whatever is chosen elsewhere: a trained model, unless it looks at a file."""
    return {} if looks_at("checkpoint") else {"source": "pretrained"}


def looks_at(view: str) -> bool:
    """Say whether the page shows this."""
    return bool(state.get("real_view") == view)


def all_heads(experiment: Experiment) -> None:
    """Draw every head of the model as a small map, in order of the layers or of a number."""
    if not has_model(experiment):
        return
    text, sample, views = views_of(experiment)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.select("real_sort", "Order of the heads", SORTS)
        sort = state.get("real_sort")
        if sort != "layer":
            controls.slide("real_least", "At least, percent", 0, 100)
    heads = _ordered(views, sort, state.get("real_least") / 100)
    if not heads:
        st.info(_no_head(sort, text))
        return
    maps = compute_model.small_maps(text, sample, tuple((layer, head) for layer, head, _ in heads))
    chosen = (experiment.source.layer, state.get("head")) if isinstance(experiment.source, PretrainedSource) else (0, 0)
    look = head_grid.GridLook(
        table=theme.SEQUENTIAL_TABLE,
        scale="fixed",
        low=0.0,
        high=1.0,
        q_labels=[""] * maps.maps.rows,
        k_labels=[""] * maps.maps.columns,
        head=next((i for i, (layer, head, _) in enumerate(heads) if (layer, head) == chosen), -1),
        rows=[0],
        unit="weights",
        exact=np.zeros((len(heads), maps.maps.columns), dtype=np.float32),
        names=[f"{layer}.{head}" + ("" if value is None else f" · {value:.2f}") for layer, head, value in heads],
        per_line=len(views[0].stats) if sort == "layer" else PER_LINE,
    )
    state.remember("shown_heads", tuple((layer, head) for layer, head, _ in heads))
    head_grid.head_grid(head_grid.message(maps.maps, look), key=GRID_KEY, on_pick=_pick)
    st.caption(_meaning(sort))
    with st.expander("All numbers of all heads"):
        table = _table(views)
        st.dataframe(table, hide_index=True, height=300, key="all_heads_table")
        panels.downloads(table, "all_heads")


def _number(view: LayerView, head: int, name: str) -> float:
    return view.induction[head] if name == "induction" else float(getattr(view.stats[head], name))


def _ordered(views: tuple[LayerView, ...], sort: str, least: float) -> list[tuple[int, int, float | None]]:
    """Give layer, head and the number that decides, largest first; all in their own order without one."""
    every = [(layer, head) for layer, view in enumerate(views) for head in range(len(view.stats))]
    if sort == "layer":
        return [(layer, head, None) for layer, head in every]
    valued = [(_number(views[layer], head, sort), layer, head) for layer, head in every]
    return [(layer, head, value) for value, layer, head in sorted(valued, key=lambda v: -v[0]) if value >= least]


def _meaning(sort: str) -> str:
    meanings = {
        "layer": "Rows are layers, from the first; a map is a head. Long texts are pooled, the peak kept.",
        "induction": "Weight on the token that came after the same token before, on a random text that is repeated "
        "(Olsson et al. 2022); the maps are those of your text.",
        "previous": "Mean weight on the token before; the first token has none, and counts as 0.",
        "first": "Mean weight on the first token: heads with nothing to say often rest there.",
        "diagonal": "Mean weight on the token itself.",
        "maximum": "Mean of each row's largest weight.",
        "relative_entropy": "Entropy of a row divided by that of a uniform one: 1 looks at all keys alike.",
    }
    return meanings[sort]


def _no_head(sort: str, source: PretrainedSource) -> str:
    has_number = sort != "induction" or isinstance(source.loaded().reader, TextReader)
    return "No head reaches that." if has_number else "It needs a text that is repeated: a picture has no such number."


def _table(views: tuple[LayerView, ...]) -> pd.DataFrame:
    names = ("previous", "first", "diagonal", "relative_entropy", "mean_distance", "maximum")
    rows = [
        {"layer": view.site.label, "layer.head": f"{layer}.{head}", "induction": view.induction[head]}
        | {name: getattr(view.stats[head], name) for name in names}
        | {"off, weights": view.difference.weights, "off, output": view.difference.output}
        for layer, view in enumerate(views)
        for head in range(len(view.stats))
    ]
    return pd.DataFrame(rows)


def _pick() -> None:
    event = state.take_event(GRID_KEY, "pick")
    shown = state.recall("shown_heads", ())
    if event is not None and int(event["head"]) < len(shown):
        layer, head = shown[int(event["head"])]
        state.put_and_redraw(layer=layer, head=head)


def layer_title(experiment: Experiment) -> None:
    """Name the chosen layer and head, and offer to mute the head."""
    if not has_model(experiment):
        return
    assert isinstance(experiment.source, PretrainedSource)
    site, head = experiment.source.site(), min(state.get("head"), experiment.attention.num_heads - 1)
    name = f"{site.index}.{head}"
    edited = " as edited" if experiment != unedited(experiment) else ""
    st.markdown(f"##### {panels.plain(site.label.capitalize())}, head {head}{edited}")
    muted = experiment.source.muted
    with st.container(horizontal=True):
        others = tuple(pair for pair in muted if pair != name)
        label, wanted = (f"Let {name} speak", others) if name in muted else (f"Mute {name}", (*muted, name))
        st.button(label, key="mute_head", on_click=state.put_and_redraw, kwargs={"muted": wanted})
        if muted:
            st.button("Let all speak", key="unmute", on_click=state.put_and_redraw, kwargs={"muted": ()})
        st.button(
            "Show this layer on the other pages",
            key="take_along",
            on_click=state.put_and_redraw,
            kwargs={"source": "pretrained"},
            help="makes it the source of the experiment; Source in the sidebar of the other pages changes it back",
        )


def layer_controls() -> None:
    """Offer how the chosen layer is shown, where there is one."""
    if has_model(state.last_good()):
        attention.view_controls()


def maps(experiment: Experiment) -> None:
    """Draw all heads of the chosen layer."""
    if has_model(experiment):
        attention.maps(experiment)


def large_map(experiment: Experiment) -> None:
    """Draw the chosen head large."""
    if has_model(experiment):
        attention.large_map(experiment)


def closer_look(experiment: Experiment) -> None:
    """Draw what was chosen to look at more closely."""
    if has_model(experiment):
        attention.closer_look(experiment)


def effects(experiment: Experiment) -> None:
    """Draw what the edits change."""
    if has_model(experiment):
        real_effects.section(experiment)


def checkpoint_section(experiment: Experiment) -> None:
    """Draw the inspector of checkpoint files."""
    checkpoint.section(experiment)
