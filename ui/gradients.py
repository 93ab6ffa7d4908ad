"""Benches of page Gradients: one backward pass, and all schemes side by side; a person's own model is own_model.py."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.init_schemes import INIT_SCHEMES
from mha_core.lenses.grad_losses import LOSSES
from mha_core.lenses.grad_schemes import SchemeRow
from mha_core.lenses.gradients import Flow, Gradients
from mha_core.lenses.verdicts import FORMULAS, IDENTICAL, THRESHOLDS, Judged, Verdict
from ui import compute, controls, gradients_figures, head_grid, panels, state, theme
from ui.figures import block_labels, colour_range
from ui.own_model import own_model
from ui.small_maps import fit_maps

__all__ = ["one_pass", "own_model", "schemes"]

LOSS_WORDS = {"sum": "sum of outputs", "mse": "mean square to a random target", "next_token": "next token"}
NUMBER = st.column_config.NumberColumn(format="%.4g")
COLUMNS_HELP = {
    "norm": "L2 norm of the gradient",
    "RMS": "root of the mean square of its entries",
    "norm of the value": "L2 norm of the parameter or tensor itself",
    "ratio": "gradient norm / norm of the value",
    "zeros": "share of entries that are exactly 0",
    "over Xavier's": "norm / norm under Xavier-uniform, same input, loss and seed",
}


def _loss_choice() -> str:
    controls.choose("grad_loss", "Loss", LOSS_WORDS)
    loss: str = state.get("grad_loss")
    st.caption(panels.plain(f"Loss: {LOSSES[loss].summary}."))
    return loss


def one_pass(experiment: Experiment) -> None:
    """Draw one backward pass: verdicts, norms, heads, the gradient of the scores, and the table."""
    loss = _loss_choice()
    try:
        result = compute.backward_pass(experiment, loss)
    except MhaError as error:
        st.info(panels.plain(str(error)))
        return
    _tell(result)
    left, right = st.columns(2, gap="medium")
    with left:
        st.plotly_chart(
            gradients_figures.norms(result, "From the loss (top) back to q and k"),
            key="gradient_norms",
            theme=None,
            alt="Norm and verdict of every gradient, as in the table below.",
        )
    with right:
        st.plotly_chart(
            gradients_figures.head_shares(result, "Which head gets how much"),
            key="gradient_heads",
            theme=None,
            alt="Gradient norm of each head over the mean of all heads.",
        )
        grouped = experiment.attention.kv_heads != experiment.attention.num_heads
        shared = " Heads of a group share k and v, and so their gradient." if grouped else ""
        st.caption(
            f"Each row over its own mean: 1 is an even share, 0 a head that gets nothing; no colour: none does.{shared}"
        )
    _score_map(result.found)
    table = pass_table(result)
    columns = {name: st.column_config.NumberColumn(format="%.4g", help=text) for name, text in COLUMNS_HELP.items()}
    columns |= {
        "gradient": st.column_config.Column(pinned=True, width=100),
        "zeros": st.column_config.NumberColumn(format="%.4g", help=COLUMNS_HELP["zeros"], width=85),
        "reason": st.column_config.Column(width="large"),
    }
    st.dataframe(table, hide_index=True, column_config=columns, key="gradient_table", height=36 + 35 * len(table))
    panels.downloads(table, "gradients")
    _how_judged()


def _how_judged() -> None:
    with st.expander("How verdicts are made, and the chain rule behind them"):
        st.markdown(panels.plain(THRESHOLDS))
        st.code("\n".join(FORMULAS.values()), language=None, wrap_lines=True)


def _tell(result: Judged) -> None:
    """Say first what is wrong and why, each reason once."""
    found = result.found
    alarming = {name: verdict for name, verdict in result.parameters.items() if verdict.is_alarming}
    if not alarming:
        by_design = " The key bias gets only rounding noise, and that is fine." if "k_bias" in found.parameter else ""
        rotary = found.experiment.attention.rope_theta is not None
        st.success(f"Every parameter learns.{'' if rotary else by_design}")
    else:
        told: dict[tuple[str, str], list[str]] = {}  # a bias is told with its matrix: the same factors are to blame
        for name, verdict in alarming.items():
            told.setdefault((name.removesuffix("_bias"), verdict.kind), []).append(name)
        lines = []
        for (_, kind), names in told.items():
            words = ", ".join(name.replace("_bias", " bias") for name in names)
            lines.append(f"- **{words}**: {kind}. {panels.plain(alarming[names[0]].reason)}")
        st.warning("\n".join(lines))
    if found.facts.identical_heads:
        st.warning(IDENTICAL.format(heads=found.experiment.attention.num_heads))
    if found.note:
        st.info(found.note)


def pass_table(result: Judged) -> pd.DataFrame:
    """Give every gradient as a row: parameters first, then tensors."""
    found = result.found
    rows = [_row(flow, result.parameters[flow.name]) for flow in found.parameters]
    return pd.DataFrame(rows + [_row(flow, result.tensors[flow.name]) for flow in found.tensors])


def _row(flow: Flow, verdict: Verdict) -> dict[str, object]:
    return {
        "gradient": gradients_figures.label(flow),
        "shape": " x ".join(map(str, flow.shape)),
        "verdict": verdict.kind,
        "norm": flow.norm,
        "RMS": flow.rms,
        "norm of the value": flow.value_norm,
        "ratio": flow.ratio,
        "zeros": flow.zeros,
        "over Xavier's": verdict.relative,
        "reason": verdict.reason,
    }


def _score_map(found: Gradients) -> None:
    """Draw the gradient of the scores of one sequence, all heads."""
    if found.score_gradient is None:
        return
    batch = found.sizes.batch
    if batch > 1:
        controls.count("sequence", f"Sequence (of {batch})", batch - 1)
    sample = min(state.get("sequence"), batch - 1)
    st.markdown("**Gradient of the scores, head by head**")
    if found.tensor["scores"].norm == 0:
        st.caption("No score gets any gradient.")
        return
    message, block = score_message(found, sample)
    head_grid.head_grid(message, key="score_gradient_grid", on_pick=state.redraw_nothing)
    pooled = f" A cell is the mean of {block[0]} x {block[1]} values." if block != (1, 1) else ""
    st.caption(
        "Blue: a higher score here would lower the loss; orange: it would raise it. The softmax shares out one unit of "
        f"weight, so each row sums to 0: what one key gains the others lose.{pooled}"
    )


def score_message(found: Gradients, sample: int) -> tuple[bytes, tuple[int, int]]:
    """Encode the gradient of the scores for the grid. Returns the message and the size of a pooled cell."""
    assert found.score_gradient is not None, "the fused kernel has none"
    gradient = found.score_gradient[sample].float()  # (H, Sq, Sk)
    allowed = None if found.mask is None else found.mask[min(sample, len(found.mask) - 1)]
    small = fit_maps(gradient, allowed, "mean")
    low, high = colour_range("scores", small.values[~small.hidden])
    look = head_grid.GridLook(
        table=theme.DIVERGING_TABLE,
        scale="fixed",
        low=low or -1.0,
        high=high or 1.0,
        q_labels=block_labels(found.sizes.q_tokens.padded[sample], small.q_block),
        k_labels=block_labels(found.sizes.k_tokens.padded[sample], small.k_block),
        head=0,
        rows=[0],
        unit="dL/dscore",
        exact=small.values[:, 0],
    )
    return head_grid.message(small.maps, look), (small.q_block, small.k_block)


def schemes(experiment: Experiment) -> None:
    """Draw all schemes side by side: verdicts as a picture, numbers and reasons as tables."""
    loss = _loss_choice()
    try:
        rows = compute.scheme_rows(experiment, loss)
    except MhaError as error:
        st.info(panels.plain(str(error)))
        return
    init = experiment.init
    if len(init.targets) < 4:
        rest = (
            "Other matrices stay Xavier-uniform." if init.targets else "No matrix is a target: all rows are Xavier's."
        )
        st.caption(f"Each scheme fills {', '.join(init.targets) or 'nothing'}. {rest}")
    st.plotly_chart(
        gradients_figures.schemes(rows, "Gradient of each matrix, by scheme"),
        key="scheme_picture",
        theme=None,
        alt="Verdict on each of q, k, v and out for every scheme, as in the table below.",
    )
    st.caption(
        f"Same input, loss and seed; gain {init.gain:g}, std {init.std:g} as chosen. Blue: smaller than under Xavier, "
        "orange: larger, no colour: no gradient at all, or not a number."
    )
    identical = [row.scheme for row in rows if row.identical_heads]
    if identical:
        heads = experiment.attention.num_heads
        st.markdown(panels.plain(f"{', '.join(identical)}: {IDENTICAL.format(heads=heads)}"))
    table = scheme_table(rows)
    columns = {name: NUMBER for name in table.columns if name.startswith(("std", "entropy", "norm", "loss"))}
    columns |= {"scheme": st.column_config.Column(pinned=True)}
    st.dataframe(table, hide_index=True, column_config=columns, key="scheme_table", height=36 + 35 * len(table))
    panels.downloads(table, "schemes")
    with st.expander("Why: the reason for every verdict that is not healthy"):
        reasons = reason_table(rows)
        wide = {"reason": st.column_config.Column(width="large")}
        st.dataframe(reasons, hide_index=True, column_config=wide, key="scheme_reasons")
        panels.downloads(reasons, "scheme_reasons")
    _how_judged()


def scheme_table(rows: Sequence[SchemeRow]) -> pd.DataFrame:
    """Give one row per scheme: std of every stage, entropy, gradient norms and verdicts."""
    return pd.DataFrame([row.as_row() for row in rows]).rename(columns=lambda name: name.replace("_", " "))


def reason_table(rows: Sequence[SchemeRow]) -> pd.DataFrame:
    """Give one row per scheme and parameter that is not healthy."""
    return pd.DataFrame(
        [
            {"scheme": row.scheme, "starts as": INIT_SCHEMES[row.scheme].summary, "parameter": name}
            | {"verdict": verdict.kind, "reason": verdict.reason}
            for row in rows
            for name, verdict in row.verdicts.items()
            if verdict.kind not in ("healthy", "by design")
        ],
        columns=["scheme", "starts as", "parameter", "verdict", "reason"],
    )
