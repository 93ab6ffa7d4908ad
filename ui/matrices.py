"""The bench on single choices: which matrix a scheme fills, the 1/√D scale, and Xavier on a packed matrix."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.init_schemes import TARGETS
from mha_core.lenses.init_effects import PackedRow, ScalePoint, Spread, target_scheme
from ui import compute, laboratory_figures, panels
from ui.figure_style import value_axis

SPREAD_WORDS = {
    "score_variance": "variance of scores",
    "relative_entropy": "entropy / ln keys",
    "score_gradient": "gradient of scores",
    "q_gradient": "gradient of q",
}


def draw(experiment: Experiment) -> None:
    """Draw the comparisons."""
    try:
        _targets(experiment)
        st.divider()
        _scale(compute.scale_against_width(experiment))
        st.divider()
        _packed(*compute.packed_against_blocks(experiment))
    except MhaError as error:
        st.warning(panels.plain(f"{error}"))


def _targets(experiment: Experiment) -> None:
    scheme = target_scheme(experiment)
    st.markdown(f"##### {panels.plain(scheme.replace('_', ' ').capitalize())} on which matrices?")
    rows = []
    for row in compute.targets(experiment):
        verdicts = {f"{name}": row.result.verdicts[name].kind for name in TARGETS}
        norms = {f"norm {name}": row.result.norms[name] for name in TARGETS}
        rows.append({"applied to": ", ".join(row.targets) or "none"} | verdicts | norms)
    table = pd.DataFrame(rows)
    looks = {f"norm {name}": st.column_config.NumberColumn(f"‖dL/dW{name}‖", format="%.3g") for name in TARGETS}
    st.dataframe(
        table, hide_index=True, column_config=looks, height=36 + 35 * len(rows), row_height=35, key="targets_table"
    )
    panels.downloads(table, "targets")
    st.caption(
        "What the first backward pass, from the sum of the outputs, does for each matrix; the others are Xavier."
    )


def _spelled(spread: Spread) -> dict[str, Any]:
    return {SPREAD_WORDS[name]: value for name, value in asdict(spread).items()}


def _scale(points: tuple[ScalePoint, ...]) -> None:
    st.markdown("##### Why divide by √D?")
    widths = [point.head_dim for point in points]
    axis = value_axis("head width D", log=True) | {"tickvals": widths, "ticktext": [str(width) for width in widths]}
    variance = {
        "scale 1/√D": (widths, [point.scaled.score_variance for point in points]),
        "no scale": (widths, [point.unscaled.score_variance for point in points]),
        "theory: D times the variance with 1/√D": (widths, [p.head_dim * p.scaled.score_variance for p in points]),
    }
    entropy = {
        "scale 1/√D": (widths, [point.scaled.relative_entropy for point in points]),
        "no scale": (widths, [point.unscaled.relative_entropy for point in points]),
    }
    left, right = st.columns(2)
    with left:
        y_axis = laboratory_figures.norm_axis("variance of q·k")
        dashed = [name for name in variance if name.startswith("theory")]
        figure = laboratory_figures.lines(variance, "Scores spread with D", axis, y_axis, dashed=dashed)
        st.plotly_chart(figure, key="scale_variance", theme=None, alt="Variance of the scores against head width.")
    with right:
        y_axis = value_axis("entropy / ln(allowed keys)") | {"range": [0, 1.05]}
        figure = laboratory_figures.lines(entropy, "so the softmax saturates", axis, y_axis)
        st.plotly_chart(figure, key="scale_entropy", theme=None, alt="Entropy of the weights against head width.")
    last = points[-1]
    st.caption(
        f"q·k is a sum of D products, so its variance grows with D: {last.unscaled.score_variance:.3g} at D = "
        f"{last.head_dim} without a scale, {last.scaled.score_variance:.3g} with 1/√D (Vaswani et al. 2017, section "
        f"3.2.1). The entropy of the weights is {last.unscaled.relative_entropy:.2f} of the largest possible without "
        f"it, {last.scaled.relative_entropy:.2f} with it."
    )
    ways = [("1/√D", "scaled"), ("none", "unscaled")]
    table = pd.DataFrame(
        [
            {"D": point.head_dim, "H": point.num_heads, "scale": word} | _spelled(getattr(point, name))
            for point in points
            for word, name in ways
        ]
    )
    with st.expander("As a table"):
        st.dataframe(table, hide_index=True, height=280, key="scale_table")
        panels.downloads(table, "scale")


def _packed(per_block: PackedRow, packed: PackedRow) -> None:
    st.markdown("##### Xavier on a packed matrix")
    table = pd.DataFrame(
        [
            {"drawn": row.way, "std of q's weights": row.measured_std, "theory": row.theory_std} | _spelled(row.spread)
            for row in (per_block, packed)
        ]
    )
    st.dataframe(table, hide_index=True, key="packed_table")
    panels.downloads(table, "packed")
    ratio, theory = packed.measured_std / per_block.measured_std, packed.theory_std / per_block.theory_std
    st.caption(
        f"Xavier divides by fan_in + fan_out. The packed matrix has three times as many rows, so every weight is "
        f"{ratio:.3f} times as large (theory {theory:.3f}; 1/√2 = 0.707 without shared heads), the scores spread "
        f"{packed.spread.score_variance / per_block.spread.score_variance:.2f} times as much, and the maps are "
        "flatter. nn.MultiheadAttention draws its in_proj_weight packed."
    )
