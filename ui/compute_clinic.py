"""Cached answers of the clinic: both sides of a mistake on an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from mha_core.clinic import MISTAKES
from mha_core.clinic.compare import Comparison, compare
from mha_core.experiment import Experiment, needed_bytes, prepare
from ui.compute import GATE

SMALL_BYTES = 12 * 2**20  # of one run: the default layer takes 8 MiB
_KEY: dict[str | type[Any], Callable[[Any], Any]] = {Experiment: Experiment.to_json}


def comparison(experiment: Experiment, name: str, also: tuple[str, ...] = ()) -> Comparison:
    """Compare both sides of a mistake. Its tensors are shared: read them only.

    Args:
        also: what the experiment must have beside what the mistake needs (mha_core.clinic.needs).

    Raises:
        MhaError: the experiment cannot be run.
    """
    is_small = needed_bytes(experiment, prepare(experiment)) <= SMALL_BYTES
    return _small(experiment, name, also) if is_small else _large(experiment, name, also)


@st.cache_resource(max_entries=48, show_spinner=False, hash_funcs=_KEY)
def _small(experiment: Experiment, name: str, also: tuple[str, ...]) -> Comparison:
    with GATE:
        return compare(experiment, MISTAKES[name], also)


@st.cache_resource(max_entries=2, show_spinner="Running both sides", hash_funcs=_KEY)
def _large(experiment: Experiment, name: str, also: tuple[str, ...]) -> Comparison:
    with GATE:
        return compare(experiment, MISTAKES[name], also)
