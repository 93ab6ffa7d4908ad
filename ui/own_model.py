"""The bench of page Gradients for a person's own model: a file of gradient norms in, verdicts and reasons out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.recorded_norms import (
    EXAMPLE,
    MAX_NORM_BYTES,
    NEED,
    RULES,
    RecordedVerdict,
    judge_norms,
    parse_norms,
)
from mha_core.lenses.verdicts import ALARMING, VERDICTS
from ui import panels

NUMBER = st.column_config.NumberColumn(format="%.4g")
REASONS_TOLD, NAMES_TOLD = 8, 4


def own_model(experiment: Experiment) -> None:
    """Judge gradient norms that a person recorded elsewhere."""
    st.markdown("Drop a JSON file of the gradient norms of your own model, by the names of its parameters.")
    upload = st.file_uploader("Gradient norms, JSON", type=["json"], key="own_norms", max_upload_size=2)
    with st.expander("How to record them, and what a file may look like"):
        st.code(
            "loss.backward()\n"
            'norms = {name: {"grad": None if p.grad is None else p.grad.norm().item(), "weight": p.norm().item()}\n'
            "         for name, p in model.named_parameters()}\n"
            'json.dump(norms, open("norms.json", "w"))',
            language="python",
        )
        st.markdown(panels.plain(f"Read is {NEED}. At most {MAX_NORM_BYTES // 2**20} MiB."))
        st.download_button(
            "Example file", json.dumps(EXAMPLE, indent=2), "norms.json", "application/json", key="norms_example",
            on_click="ignore",
        )  # fmt: skip
    if upload is not None:
        _own_verdicts(upload.getvalue())


def _reasons(verdicts: Sequence[RecordedVerdict]) -> None:
    """Tell the first few things that are wrong, each reason once."""
    told: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.kind in ALARMING:
            told.setdefault(f"{verdict.kind}. {verdict.reason}", []).append(verdict.name)
    if not told:
        st.success("Nothing is dead, vanishing or exploding.")
        return
    lines = []
    for words, names in list(told.items())[:REASONS_TOLD]:
        more = f" and {len(names) - NAMES_TOLD:,} more" if len(names) > NAMES_TOLD else ""
        lines.append(f"- **{panels.plain(', '.join(names[:NAMES_TOLD]))}**{more}: {panels.plain(words)}")
    if len(told) > REASONS_TOLD:
        lines.append(f"- and {len(told) - REASONS_TOLD:,} more, in the table")
    st.warning("\n".join(lines))


def _own_verdicts(raw: bytes) -> None:
    try:
        verdicts = judge_norms(parse_norms(raw))
    except MhaError as error:
        st.error(panels.plain(str(error)))
        return
    counts: Mapping[str, int] = {kind: sum(verdict.kind == kind for verdict in verdicts) for kind in VERDICTS}
    panels.headline([f"{len(verdicts):,} norms", *(f"{count:,} {kind}" for kind, count in counts.items() if count)])
    _reasons(verdicts)
    table = pd.DataFrame(
        [
            {
                "name": verdict.name,
                "verdict": verdict.kind,
                "norm": verdict.norm,
                "weight norm": verdict.weight_norm,
                "over the median": verdict.relative,
                "reason": verdict.reason,
            }
            for verdict in verdicts
        ]
    )
    columns = dict.fromkeys(("norm", "weight norm", "over the median"), NUMBER)
    wide = {"name": st.column_config.Column(pinned=True), "reason": st.column_config.Column(width="large")}
    height = 36 + 35 * min(len(table), 16)
    st.dataframe(table, hide_index=True, column_config=columns | wide, key="own_table", height=height)
    panels.downloads(table, "own_model")
    st.caption(panels.plain(RULES))
