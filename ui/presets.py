"""Presets: whole experiments behind one button each, with a sentence on what to look at."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from mha_core.errors import FieldValue
from ui import panels, state


@dataclass(frozen=True)
class Preset:
    """One experiment worth looking at: the fields that differ from their defaults, and what to see and ask."""

    name: str
    changes: dict[str, FieldValue]
    look: str


GRADIENT_PRESETS = (
    Preset(
        "Why not zeros?",
        {"init": "zeros", "bias": False, "lab": "one_pass"},
        "All four matrices are zero and there is no bias: every gradient is exactly 0, so nothing can ever move. Take "
        "matrices out of “Applied to” in the sidebar: which one learns first, and what stops the others?",
    ),
    Preset(
        "Why divide by √D?",
        {"scale": 1.0, "num_heads": 2, "lab": "matrices"},
        "The scale is 1 instead of 1/√D, and heads are 256 wide. Look at how the scores spread with D and the entropy "
        "falls; then at page Attention: how many keys does a query still look at?",
    ),
    Preset(
        "Too large a gain",
        {"gain": 2.0, "lab": "depth"},
        "Every weight is twice as large. Which ways of joining layers keep the gradient between the lines, and why "
        "does normalisation forgive what a residual connection alone does not?",
    ),
    Preset(
        "Xavier on a packed matrix",
        {"projection": "fused", "init_packed": True, "lab": "matrices"},
        "q, k and v are drawn as one matrix with three times as many rows, as nn.MultiheadAttention does. Look at the "
        "std of the weights, and at what a factor of 1/√2 on q and on k does to the scores.",
    ),
)


def draw(presets: tuple[Preset, ...]) -> None:
    """Offer presets, and say what to look at while one of them is what is shown."""
    with st.container(horizontal=True):
        for preset in presets:
            st.button(preset.name, key=f"preset_{preset.name}", on_click=state.preset, kwargs=preset.changes)
    for preset in presets:
        if all(state.get(name) == value for name, value in preset.changes.items()):
            st.info(panels.plain(preset.look))
