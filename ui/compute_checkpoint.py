"""Cached answers about uploaded checkpoints, by their key in the store: outlines, and one layer at a time.

A config.json that came with the upload is part of the key, as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import streamlit as st

from mha_core.errors import MhaError
from mha_core.lenses import checkpoint_report
from mha_core.lenses.checkpoint_report import LayerReport, Outline
from mha_core.sources.checkpoints import store as checkpoint_store
from mha_core.sources.checkpoints.file import Checkpoint, open_checkpoint
from ui import compute

MAX_CONFIG_BYTES = 2**20


def read_config(raw: bytes) -> str:
    """Check an uploaded config.json and give it as text.

    Raises:
        MhaError: field "config"; it is no object of JSON, or too large.
    """
    need = f"an object of JSON of at most {MAX_CONFIG_BYTES:,} bytes"
    problem = f"this config is not {need}"
    if len(raw) > MAX_CONFIG_BYTES:
        raise MhaError("config", len(raw), need, problem=problem)
    try:
        text = raw.decode("utf-8")
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MhaError("config", "a file", need, problem=problem)
    return text


@st.cache_resource(max_entries=8, show_spinner=False)
def opened(key: str, config: str) -> tuple[Checkpoint, Outline]:
    """Open a kept checkpoint and find its attention layers.

    Args:
        key: from `checkpoint_store.keep`. config: a config.json as text, or empty.

    Raises:
        MhaError: field "checkpoint"; it is gone, or a buffer cannot be read.
    """
    checkpoint = open_checkpoint(checkpoint_store.kept(key))
    if config:
        checkpoint = replace(checkpoint, config=json.loads(config))
    with compute.GATE:
        return checkpoint, checkpoint_report.outline(checkpoint)


@st.cache_resource(max_entries=128, show_spinner="Reading the layer")
def layer(key: str, config: str, number: int, num_heads: int | None) -> LayerReport:
    """Describe one layer.

    Raises:
        MhaError: field "checkpoint"; it is gone, or a tensor cannot be read.
    """
    checkpoint, outline = opened(key, config)
    with compute.GATE:
        return checkpoint_report.layer_report(checkpoint, outline, number, num_heads)


def all_layers(key: str, config: str, num_heads: int | None) -> Iterator[LayerReport]:
    """Describe every layer, one after the other, for a job: whoever takes them holds the gate.

    Raises:
        MhaError: field "checkpoint"; it is gone.
    """
    checkpoint, outline = opened(key, config)  # before the gate is held
    numbers = range(len(outline.layers))
    return (checkpoint_report.layer_report(checkpoint, outline, number, num_heads) for number in numbers)
