"""The checkpoint inspector of page Real models: a file in; its attention layers, their numbers and what is odd out.

Nothing of the file is run. Every name in it is shown as it is written, never as Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from mha_core.budget import spell_bytes
from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.checkpoint_blocks import Heads
from mha_core.lenses.checkpoint_flags import Flag
from mha_core.lenses.checkpoint_report import LayerReport, Outline
from mha_core.sources.checkpoints import store as checkpoint_store
from mha_core.sources.families.found_layer import FoundLayer
from ui import checkpoint_figures, checkpoint_tables, compute_checkpoint, controls, jobs, panels, state
from ui.checkpoint_figures import MEASURES

TYPES = ["safetensors", "pt", "pth", "bin", "ckpt"]
ATTENTION = "pages/1_Attention.py"
JOB = "checkpoint_layers"
FLAGS_TOLD = 8
MAX_UPLOAD_MB = 256


def section(experiment: Experiment) -> None:
    """Draw the inspector: the upload, what was found, and one layer."""
    try:
        key, config = _upload()
        if not key:
            return
        outline = compute_checkpoint.opened(key, config)[1]
    except MhaError as error:
        st.error(panels.plain(f"{error}"))
        return
    _headline(outline)
    if not outline.layers:
        return
    checkpoint_tables.layers(outline.layers)
    number, heads = _choose(outline.layers)
    try:
        found = compute_checkpoint.layer(key, config, number, heads)
    except MhaError as error:
        st.error(panels.plain(f"{error}"))
        return
    _layer(found)
    _run(key, found)
    _all_layers(key, config, heads, outline)


def _upload() -> tuple[str, str]:
    """Take a file and perhaps its config. Returns the key in the store, or empty, and the config as text, or empty."""
    left, right = st.columns([2, 1])
    with left:
        label = "Checkpoint: .safetensors, or a state dict of torch.save"
        upload = st.file_uploader(label, type=TYPES, key="checkpoint_file", max_upload_size=MAX_UPLOAD_MB)
    with right:
        beside = st.file_uploader(
            "config.json, for the number of heads", type=["json"], key="checkpoint_config", max_upload_size=1
        )
    st.caption("Nothing in the file is run. It stays on this server until newer uploads need the room or it stops.")
    config = "" if beside is None else compute_checkpoint.read_config(beside.getvalue())
    if upload is not None:
        _keep(upload)
    if upload is not None or beside is not None:  # without both, the page was left and opened again
        state.remember("checkpoint_config", config)
    return state.recall("checkpoint", ""), state.recall("checkpoint_config", "")


def _keep(upload: UploadedFile) -> None:
    """Put an upload into the store, once."""
    if state.recall("checkpoint_upload", None) != upload.file_id:
        state.remember("checkpoint", checkpoint_store.keep(upload.name, upload.getvalue()))
        state.remember("checkpoint_upload", upload.file_id)


def _headline(outline: Outline) -> None:
    layers = len(outline.layers)
    facts = [outline.name, f"{outline.tensors:,} tensors", spell_bytes(outline.size_bytes)]
    panels.headline([*facts, f"{layers} attention layer{'' if layers == 1 else 's'}"])
    for note in outline.notes:
        st.caption(panels.plain(note))
    _flags(outline.flags)


def _flags(flags: Sequence[Flag]) -> None:
    """Show findings, problems first, each kind of sentence once."""
    for severity, show in (("problem", st.warning), ("note", st.info)):
        lines = [f"- **{panels.plain(flag.where)}**: {panels.plain(flag.sentence)}" for flag in flags
                 if flag.severity == severity]  # fmt: skip
        if len(lines) > FLAGS_TOLD:
            lines[FLAGS_TOLD:] = [f"- and {len(lines) - FLAGS_TOLD:,} more"]
        if lines:
            show("\n".join(lines))


def _choose(layers: Sequence[FoundLayer]) -> tuple[int, int | None]:
    """Choose a layer, and its number of heads where it does not follow. Returns both."""
    number = min(state.get("seen_layer"), len(layers) - 1)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = [f"{at}: {layer.name or 'the only one'}" for at, layer in enumerate(layers)]
        st.selectbox("Layer", range(len(layers)), number, format_func=words.__getitem__, **_wired("seen_layer", number))
        layer, heads = layers[number], state.get("seen_heads")
        if layer.num_heads is None and layer.possible_heads:
            fitting = [0, *layer.possible_heads]
            heads = heads if heads in fitting else 0
            spelled = {0: "not known"} | {h: f"{h} heads of {layer.q_rows // h}" for h in layer.possible_heads}
            place = fitting.index(heads)
            st.selectbox(
                "Heads H", fitting, place, format_func=spelled.__getitem__, width=220, **_wired("seen_heads", heads)
            )
    return number, heads if layer.num_heads is None and heads else None


def _wired(name: str, value: object) -> dict[str, Any]:
    return {"key": state.fill(name, value), "on_change": state.take, "args": (name,)}


def _layer(found: LayerReport) -> None:
    _flags(found.flags)
    if not found.flags:
        st.success("Nothing odd in this layer.")
    with st.expander("From what the sizes follow"):
        for sentence in found.layer.evidence:
            st.markdown(f"- {panels.plain(sentence)}")
    if found.heads is None:
        st.caption("The number of heads is not known, so there are no numbers per head.")
    checkpoint_tables.matrices(found)
    if any(stats.heads for stats in found.matrices):
        controls.choose("seen_measure", "Of every head", {name: title for name, (title, _) in MEASURES.items()})
    heads = checkpoint_figures.heads(found.matrices, state.get("seen_measure"))
    if heads is not None:
        st.plotly_chart(heads, key="checkpoint_heads", theme=None, alt="One number of every head, a row per matrix.")
    spectra = checkpoint_figures.spectra(found.matrices)
    if spectra is not None:
        alt = "Singular values of every matrix over its largest."
        st.plotly_chart(spectra, key="checkpoint_spectra", theme=None, alt=alt)
    if found.fused is not None:
        checkpoint_tables.fused(found.fused)


def _fields(key: str, found: LayerReport, heads: Heads) -> dict[str, FieldValue]:
    """Give the fields of an experiment with this layer; its weights fix the sizes."""
    # the heads too: they may follow from a config, which the experiment does not have
    return {
        "source": "checkpoint",
        "checkpoint": key,
        "checkpoint_layer": found.number,
        "num_heads": heads.num_heads,
    }


def _run(key: str, found: LayerReport) -> None:
    """Offer to run the layer on page Attention."""
    can = found.heads is not None and "out" in found.layer.tensors
    pressed = st.button(
        "Run this layer on page Attention",
        key="checkpoint_run",
        on_click=state.put,
        kwargs=_fields(key, found, found.heads) if found.heads is not None else {},
        disabled=not can,
        help=None if can else "needs an output projection and a number of heads that fits",
        type="primary",
    )
    if pressed:
        st.switch_page(ATTENTION)


def _all_layers(key: str, config: str, heads: int | None, outline: Outline) -> None:
    """Offer to look through all layers, and list what is odd in any of them."""
    if len(outline.layers) < 2:
        return
    about = f"{key} {heads} {hash(config)}"

    def begin() -> None:
        jobs.start(JOB, compute_checkpoint.all_layers(key, config, heads), len(outline.layers), about)

    def show(job: jobs.Job[LayerReport]) -> None:
        flags = [flag for layer in list(job.results) for flag in layer.flags]
        _flags(flags)
        if not flags and not job.is_running and job.results:
            st.success(f"Nothing odd in {len(job.results)} layers.")

    st.button(f"Check all {len(outline.layers)} layers", key="checkpoint_all", on_click=begin)
    job: jobs.Job[LayerReport] | None = jobs.find(JOB)
    if job is not None and job.about == about:
        jobs.watch(JOB, show)
