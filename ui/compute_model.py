"""Cached answers about trained models: loading, all heads on one text, and what edits do.

Models themselves are kept by `mha_core.sources.models.loading`, a few at a time for the whole server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import streamlit as st
import torch

from mha_core.experiment import Experiment
from mha_core.lenses import model_effects, real_heads
from mha_core.lenses.model_effects import InductionCheck, Likeness, NextToken
from mha_core.lenses.real_heads import LayerView
from mha_core.sources.models import loading as model_loading
from mha_core.sources.models.weight_packages import PACKAGES
from mha_core.sources.trained import PretrainedSource
from ui.compute import GATE
from ui.small_maps import SmallMaps, fit_maps

SIDES = (32, 24, 16, 12, 8)  # cells a side of a map among hundreds
_KEY: dict[str | type[Any], Callable[[Any], Any]] = {Experiment: Experiment.to_json, PretrainedSource: repr}


def ready(source: str, model: str) -> None:
    """Load the model where the source is one, saying so while it takes its time.

    Raises:
        MhaError: field "model"; it cannot be had.
    """
    if source != "pretrained" or model_loading.is_loaded(model):
        return
    known = PACKAGES.get(model)
    title, about = (known.title, f", about {known.seconds} s, once per server") if known else (model, "")
    with st.spinner(f"Loading {title}{about}", show_time=True):
        model_loading.load(model)


@st.cache_resource(max_entries=8, show_spinner="Running the model", hash_funcs=_KEY)
def all_layers(source: PretrainedSource, sample: int) -> tuple[LayerView, ...]:
    """Look at every head of a model, unedited, on one sequence.

    Raises:
        MhaError: the text does not fit the model.
    """
    model = model_loading.load(source.model)
    with GATE:
        return real_heads.look_at_all(model, source.text, source.memory_text, sample)


def text_of(source: PretrainedSource) -> PretrainedSource:
    """Give the model and its text alone: what all layers have in common."""
    return PretrainedSource(source.model, 0, source.text, source.memory_text)


@st.cache_resource(max_entries=16, show_spinner=False, hash_funcs=_KEY)
def small_maps(source: PretrainedSource, sample: int, heads: tuple[tuple[int, int], ...]) -> SmallMaps:
    """Encode the maps of some heads, given as (layer, head); smaller maps are filled up with hidden cells."""
    views = all_layers(source, sample)
    rows = max(view.maps.shape[1] for view in views)
    columns = max(view.maps.shape[2] for view in views)
    maps = torch.full((len(heads), rows, columns), math.nan)
    allowed = torch.zeros(len(heads), rows, columns, dtype=torch.bool)
    for number, (layer, head) in enumerate(heads):
        found = views[layer].maps[head]
        maps[number, : found.shape[0], : found.shape[1]] = found
        allowed[number, : found.shape[0], : found.shape[1]] = ~views[layer].hidden[head]
    return fit_maps(maps.nan_to_num(), allowed, "max", SIDES)


@st.cache_resource(max_entries=32, show_spinner="Running the model twice", hash_funcs=_KEY)
def next_tokens(experiment: Experiment) -> tuple[NextToken, ...]:
    """Predict the next tokens before and after the edits.

    Raises:
        MhaError: the batch is too large.
    """
    with GATE:
        return model_effects.next_tokens(experiment)


@st.cache_resource(max_entries=32, show_spinner="Running the model twice", hash_funcs=_KEY)
def likeness(experiment: Experiment) -> Likeness:
    """Compare sentences before and after the edits."""
    with GATE:
        return model_effects.likeness(experiment)


@st.cache_resource(max_entries=4, show_spinner="Repeating a random text", hash_funcs=_KEY)
def induction_check(source: PretrainedSource) -> InductionCheck:
    """Mute the strongest induction heads, and others, while the model repeats."""
    with GATE:
        scores = real_heads.induction_scores(source.loaded())
        return model_effects.induction_check(source, scores)


def strongest_induction(source: PretrainedSource, count: int = 8) -> tuple[str, ...]:
    """Name the strongest induction heads of a model, as "layer.head"."""
    views = all_layers(source, 0)
    scored = [(score, view.site.index, head) for view in views for head, score in enumerate(view.induction)]
    strongest = sorted(((s, layer, h) for s, layer, h in scored if s == s), reverse=True)[:count]
    return tuple(f"{layer}.{head}" for _, layer, head in sorted(strongest, key=lambda found: found[1:]))
