"""What edits inside a trained model change: the maps of the chosen layer, and what the model says afterwards."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
import streamlit as st
from torch import Tensor

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.head_stats import counted_rows
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import is_edited, unedited
from ui import compute, compute_model, controls, figure_style, figures, head_grid, panels, real_figures, state, theme
from ui.small_maps import fit_maps

GRID_KEY = "effects_grid"
MAPS = {"difference": "after − before", "after": "after", "before": "before"}
NOTHING: dict[str, FieldValue] = {
    "own_mask": True,
    "mask": (),
    "scale": None,
    "muted": (),
    "replaced": (),
    "reach": "layer",
}


def section(experiment: Experiment) -> None:
    """Offer edits, and show maps and consequences before and after."""
    assert isinstance(experiment.source, PretrainedSource)
    _offer(experiment)
    if not is_edited(experiment):
        st.info(
            "Nothing is edited yet. Mask, scale, muted heads and matrices are in the sidebar; the buttons above set "
            "some that are worth seeing."
        )
        return
    st.caption(panels.plain("Edited: " + "; ".join(edits_in_words(experiment)) + "."))
    _maps(experiment)
    _says(experiment)


def edits_in_words(experiment: Experiment) -> list[str]:
    """Name what differs from the model as it is."""
    source = experiment.source
    assert isinstance(source, PretrainedSource)
    where = source.site().label if source.reach == "layer" else "all layers of its kind"
    own = unedited(experiment).attention.softmax_scale
    words = []
    if not source.own_mask:
        words.append(f"the model's own mask left out in {where}")
    if experiment.mask.kinds:
        words.append(f"mask {', '.join(experiment.mask.kinds)} in {where}")
    if experiment.attention.softmax_scale != own:
        factor = experiment.attention.softmax_scale / own
        words.append(
            f"scores times {factor:.3g} (temperature {1 / factor:.3g}) in {where}" if factor else "scores all 0"
        )
    if source.replaced:
        words.append(f"{', '.join(source.replaced)} drawn anew ({experiment.init.scheme}) in {where}")
    if source.muted:
        words.append(f"muted heads {', '.join(source.muted)}")
    return words


def _offer(experiment: Experiment) -> None:
    assert isinstance(experiment.source, PretrainedSource)
    source, layer = experiment.source, experiment.source.layer
    whole = tuple(f"{layer}.{head}" for head in range(experiment.attention.num_heads))
    own = unedited(experiment).attention.softmax_scale
    offers: dict[str, dict[str, FieldValue]] = {
        "Let it see everything": {"own_mask": False, "reach": "all"},
        "Temperature 3 everywhere": {"scale": own / 3, "reach": "all"},
        "Mute this layer": {"muted": whole},
        "Zero v here": {"replaced": ("v",), "init": "zeros"},
        "Fresh q and k here": {"replaced": ("q", "k"), "init": "xavier_uniform"},
    }
    if source.loaded().can_predict:
        heads = compute_model.strongest_induction(compute_model.text_of(source))
        offers["Mute the strongest induction heads"] = {"muted": heads}
    offers["Undo all edits"] = {}
    with st.container(horizontal=True):
        for label, changes in offers.items():
            st.button(label, key=f"edit_{label}", on_click=state.put_and_redraw, kwargs=NOTHING | changes)


def _maps(experiment: Experiment) -> None:
    """Draw the chosen layer's maps before, after, or their difference."""
    old, new = compute.run_experiment(unedited(experiment)), compute.run_experiment(experiment)
    sample = min(state.get("sequence"), new.sizes.batch - 1)
    if new.sizes.batch > 1:
        controls.count("sequence", f"Sequence (of {new.sizes.batch})", new.sizes.batch - 1)
    before, after = old.weights[sample], new.weights[sample]
    changed = (after - before).abs().amax(dim=(1, 2))  # (H,)
    if not changed.any():
        st.caption(
            "No weight of this layer changes: the edits are in what it passes on, or in later layers. A muted head "
            "keeps its map; what it read is not passed on."
        )
        return
    st.caption(
        f"Largest change of a weight in this layer: {changed.max().item():.3g}, in head {int(changed.argmax())}."
    )
    controls.choose("real_maps", "Maps of the chosen layer", MAPS)
    shown = state.get("real_maps")
    values: Tensor = {"difference": after - before, "after": after, "before": before}[shown]
    maps = fit_maps(values.float(), None, "max" if shown != "difference" else "mean", compute.GRID_SIDES)
    reach = float(np.abs(maps.values).max()) or 1.0
    head = min(state.get("head"), len(values) - 1)
    rows = [counted_rows(new, sample).tolist()[-1] // maps.q_block] if len(counted_rows(new, sample)) else [0]
    look = head_grid.GridLook(
        table=theme.DIVERGING_TABLE if shown == "difference" else theme.SEQUENTIAL_TABLE,
        scale="fixed",
        low=-reach if shown == "difference" else 0.0,
        high=reach if shown == "difference" else 1.0,
        q_labels=figures.block_labels(new.sizes.q_tokens.padded[sample], maps.q_block),
        k_labels=figures.block_labels(new.sizes.k_tokens.padded[sample], maps.k_block),
        head=head,
        rows=rows,
        unit="change of the weight" if shown == "difference" else "weight",
        exact=maps.values[:, rows[0]],
    )
    head_grid.head_grid(head_grid.message(maps.maps, look), key=GRID_KEY, on_pick=_pick)


def _pick() -> None:
    event = state.take_event(GRID_KEY, "pick")
    if event is not None:
        state.put(head=int(event["head"]))
        state.redraw(("effects",))


def _says(experiment: Experiment) -> None:
    """Show what the model says before and after."""
    assert isinstance(experiment.source, PretrainedSource)
    try:
        if experiment.source.loaded().can_predict:
            _next(experiment)
            _repeat(experiment.source)
        else:
            _alike(experiment)
    except MhaError as error:
        st.warning(panels.plain(f"{error}"))


def _next(experiment: Experiment) -> None:
    st.markdown("##### What comes next")
    answers = compute_model.next_tokens(experiment)
    answer = answers[min(state.get("sequence"), len(answers) - 1)]
    tail = " ".join(answer.tokens[-6:])
    title = figure_style.plain(f"After “{'… ' if len(answer.tokens) > 6 else ''}{tail}”")
    st.plotly_chart(real_figures.next_tokens(answer.guesses, title), key="next_tokens", theme=None)
    st.caption(
        f"The edited prediction differs by {answer.divergence_nats:.3g} nats (Kullback-Leibler divergence; 0 is equal)."
    )
    panels.downloads(pd.DataFrame([asdict(guess) for guess in answer.guesses]), "next_tokens")


def _repeat(source: PretrainedSource) -> None:
    st.markdown("##### The classic check: who repeats?")
    st.caption(
        "25 random tokens, twice. In the second half the next token is known to whoever finds the earlier one and "
        "reads what followed: induction heads (Olsson et al. 2022)."
    )
    key = f"repeat_{source.model}"
    if state.recall(key, None) is None:
        st.button("Run the check", key="run_repeat", on_click=state.remember, args=(key, True))
        return
    check = compute_model.induction_check(PretrainedSource(source.model))
    st.plotly_chart(real_figures.induction(check, "Mean probability of the right token"), key="induction", theme=None)
    st.caption(f"Strongest induction heads, layer.head: {', '.join(check.heads)}. As many others are drawn at random.")


def _alike(experiment: Experiment) -> None:
    st.markdown("##### What the sentences mean to it")
    found = compute_model.likeness(experiment)
    if len(found.before) > 1:
        for column, matrix, title in zip(st.columns(2), (found.before, found.after), ("Before", "After"), strict=True):
            with column:
                figure = real_figures.likeness(np.array(matrix, dtype=np.float32), f"{title}: how alike the lines are")
                st.plotly_chart(figure, key=f"alike_{title}", theme=None)
    lines = [line for line in experiment.source.text.splitlines() if line.strip()]  # type: ignore[union-attr]
    table = pd.DataFrame({"line": range(len(lines)), "cosine before to after": found.moved, "text": lines})
    st.dataframe(table, hide_index=True, key="moved")
    st.caption(
        "A sentence's vector is the mean of the last hidden states over its tokens. 1: the edit did not move it."
        + ("" if len(lines) > 1 else " Write several lines to compare them with one another.")
    )
    panels.downloads(table, "sentences")
