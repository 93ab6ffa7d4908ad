"""Page Gradients as a laboratory of six benches, one shown at a time, and presets that set a whole experiment."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from mha_core.experiment import Experiment
from ui import depth, gradients, matrices, state, training

FRESH = ("matrices", "depth")  # benches that change the sizes, or stack layers
WORDS = {
    "one_pass": "one backward pass",
    "schemes": "schemes side by side",
    "matrices": "which matrix, which scale",
    "depth": "depth",
    "race": "training race",
    "own_model": "my own model",
}
SECTIONS: dict[str, Callable[[Experiment], None]] = {
    "one_pass": gradients.one_pass,
    "schemes": gradients.schemes,
    "matrices": matrices.draw,
    "depth": depth.draw,
    "race": training.race,
    "own_model": gradients.own_model,
}


def section(experiment: Experiment) -> None:
    """Draw the chosen bench."""
    if state.get("lab") in FRESH and state.get("source") in ("pretrained", "checkpoint"):
        st.caption("Layers of this size are drawn fresh here: the trained weights take no part.")
    SECTIONS[state.get("lab")](experiment)
