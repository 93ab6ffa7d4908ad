"""The tables of the checkpoint inspector: layers, numbers of every matrix, schemes tried, and orders weighed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from mha_core.lenses.checkpoint_fused import FusedEvidence
from mha_core.lenses.checkpoint_report import LayerReport
from mha_core.sources.families.found_layer import FoundLayer
from ui import panels

HEADS_TOLD = 8
NUMBER = st.column_config.NumberColumn(format="%.4g")
EVIDENCE_WORDS = {
    "channels": "blocks of one kind (all q, all k, all v) read the same channels of the input",
    "size": "blocks of one kind have one size",
    "subspace": "q and k of one head work in one subspace",
    "rows": "row norms of q and k go together, more than those of q and v",
}


def _possible(layer: FoundLayer) -> str:
    heads = sorted(layer.possible_heads)
    more = ", …" if len(heads) > HEADS_TOLD else ""
    return f"open: {', '.join(map(str, heads[:HEADS_TOLD]))}{more}" if heads else "none fits"


def layers(found: Sequence[FoundLayer]) -> None:
    """List the attention layers and what follows of their sizes."""
    rows = [
        {
            "layer": number,
            "name": layer.name,
            "family": layer.family,
            "attention": layer.kind,
            "order": layer.packing + (", transposed" if layer.transposed else ""),
            "E": layer.embed_dim,
            "H": _possible(layer) if layer.num_heads is None else str(layer.num_heads),
            "Hkv": "" if layer.num_kv_heads is None else str(layer.num_kv_heads),
            "D": "" if layer.head_dim is None else str(layer.head_dim),
        }
        for number, layer in enumerate(found)
    ]
    table = pd.DataFrame(rows)
    help_ = {
        "order": "how q, k and v are kept: separate, or inside one matrix",
        "H": "query heads; open where they do not follow from the file or a config",
        "Hkv": "key/value heads",
        "D": "channels of a head",
        "E": "width of the layer's input",
    }
    columns = {name: st.column_config.Column(name, help=text) for name, text in help_.items()}
    height = 38 + 35 * min(len(rows), 8)
    st.dataframe(table, hide_index=True, column_config=columns, height=height, key="checkpoint_table")
    panels.downloads(table, "checkpoint_layers")


def matrices(found: LayerReport) -> None:
    """Show the numbers of every matrix, and one sentence each on what it looks like."""
    lines = [f"- **{stats.role}**: {panels.plain(likeness.sentence)}"
             for stats, likeness in zip(found.matrices, found.resemblances, strict=True)
             if not stats.role.endswith("_bias")]  # fmt: skip
    st.markdown("\n".join(lines))
    rows = []
    for stats, likeness in zip(found.matrices, found.resemblances, strict=True):
        moments, spectrum = stats.moments, stats.spectrum
        numbers = {"mean": moments.mean, "std": moments.std, "norm": moments.norm, "min": moments.minimum}
        numbers |= {"max": moments.maximum, "kurtosis": moments.kurtosis}
        singular: dict[str, float | None] = {
            "largest s": None,
            "smallest s": None,
            "effective rank": None,
            "stable rank": None,
        }
        if spectrum is not None:
            values = (spectrum.largest, spectrum.smallest, spectrum.effective_rank, spectrum.stable_rank)
            singular = dict(zip(singular, values, strict=True))
        shape = f"{stats.rows} x {stats.columns}"
        row = {"matrix": stats.role, "shape": shape, "dtype": stats.dtype}
        rows.append(row | numbers | singular | {"looks like": likeness.sentence, "tensor": stats.tensor})
    table = pd.DataFrame(rows)
    with st.expander("Numbers of every matrix and bias"):
        floats = dict.fromkeys((*numbers, *singular), NUMBER)
        st.dataframe(table, hide_index=True, column_config=floats, height=38 + 35 * len(rows), key="checkpoint_numbers")
        st.caption(
            "Kurtosis: 3 for normal numbers, 1.8 for uniform ones. s: singular values. Effective rank: exp of the "
            "entropy of the singular values over their sum (Roy & Vetterli 2007). Stable rank: squared norm over "
            "squared largest singular value."
        )
        panels.downloads(table, "checkpoint_matrices")
    _tried(found)


def _tried(found: LayerReport) -> None:
    """Show how far every scheme is from every matrix."""
    rows = [
        {
            "matrix": stats.role,
            "scheme": fit.words,
            "std it gives": fit.expected_std,
            "measured over it": fit.std_ratio,
            "fits": fit.fits,
            "against it": fit.against or "; ".join(likeness.reasons),
        }
        for stats, likeness in zip(found.matrices, found.resemblances, strict=True)
        for fit in likeness.fits
    ]
    if not rows:
        return
    with st.expander("What each scheme would have given"):
        table = pd.DataFrame(rows)
        columns = dict.fromkeys(("std it gives", "measured over it"), NUMBER)
        st.dataframe(table, hide_index=True, column_config=columns, height=320, key="checkpoint_schemes")
        st.caption(
            "A scheme fits where std, kurtosis and largest value are as it gives them, within 5 standard errors. A "
            "trained matrix is told by what independent draws never do: rows or columns of unequal norm, or a singular "
            "value beyond the edge of the spectrum."
        )
        panels.downloads(table, "checkpoint_schemes_table")


def fused(evidence: FusedEvidence) -> None:
    """Say in which order q, k and v lie in a fused matrix, and from what."""
    st.markdown("##### Order inside the fused matrix")
    st.markdown(panels.plain(f"{evidence.verdict[:1].upper()}{evidence.verdict[1:]}."))
    if not evidence.layouts:
        return
    table = pd.DataFrame([asdict(layout) for layout in evidence.layouts])
    columns = {
        name: st.column_config.NumberColumn(name, format="%.1f", help=text) for name, text in EVIDENCE_WORDS.items()
    } | {"total": st.column_config.NumberColumn("total", format="%.1f", help="sum, each at most 8")}
    with st.expander("Evidence for every order"):
        st.dataframe(table, hide_index=True, column_config=columns, key="checkpoint_fused")
        st.caption(
            "Standard deviations from random guesses of which rows are whose. A fresh matrix gives about 0 for all."
        )
        panels.downloads(table, "checkpoint_orders")
