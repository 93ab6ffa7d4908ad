"""The parts of page Cost: what each step costs, who counts how, how it grows, what memory it takes.

Everything is a closed form and needs no run, so the parts speak of the chosen experiment also where it is too large to
be run. What is measured on this machine is in cost_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from mha_core.budget import spell_bytes
from mha_core.choices import Experiment
from mha_core.errors import MhaError
from mha_core.lenses.cost import PAIR_PRODUCTS, Cost
from mha_core.lenses.cost_growth import crossing
from mha_core.lenses.cost_memory import attention_matrix_bytes, groupings, kv_cache_bytes, memory_by_dtype
from mha_core.lenses.cost_rows import CONVENTIONS
from ui import compute, controls, cost_figures, cost_tables, panels, state
from ui.cost_figures import StepBars, spell
from ui.cost_tables import UNITS

BELOW = "the cost of these choices, or of the last ones that make a layer; it needs no run"
UNIT_WORDS = {"flop": "FLOP", "mac": "MAC"}
PASS_WORDS = {"forward": "forward", "both": "forward + backward"}
PAIR_WORDS = {"dense": "dense kernel", "needed": "what the mask needs"}


@dataclass(frozen=True)
class Choice:
    """What of a cost is looked at."""

    experiment: Experiment
    cost: Cost
    unit: str
    passes: str
    pairs: str

    def total(self, kind: str) -> float:
        """Add up one kind of work, "matmul" in the unit and "elementwise" in operations."""
        flops = cost_tables.total(self.cost, kind, self.passes, self.pairs)
        return cost_tables.in_unit(flops, self.unit) if kind == "matmul" else flops


def subject(runs: Experiment) -> Experiment:
    """Give the chosen experiment, of any size; where its choices make no layer, the last one that runs."""
    chosen, _ = state.current_experiment()
    try:
        compute.cost(chosen, True)
    except MhaError:  # the custom mask does not fit: the lesson is on top of the page
        return runs
    return chosen


def look(runs: Experiment) -> Choice:
    """Bring the view and the experiment together."""
    experiment = subject(runs)
    cost = compute.cost(experiment, state.get("cost_input_gradient"))
    return Choice(experiment, cost, state.get("cost_unit"), state.get("cost_pass"), state.get("cost_pairs"))


def view_controls() -> None:
    """Offer the choices of the view."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.choose("cost_unit", "Unit", UNIT_WORDS)
        controls.choose("cost_pass", "Pass", PASS_WORDS)
        controls.choose("cost_pairs", "Pairs counted", PAIR_WORDS)
        controls.switch("cost_input_gradient", "Gradient of the input")


def headline(runs: Experiment) -> None:
    """Show parameters, work, the share of attention and the cache in one line."""
    choice = look(runs)
    cost, config = choice.cost, choice.cost.config
    context = state.get("cost_context")
    attention = sum(
        cost_tables.work(row, "matmul", choice.passes, choice.pairs) for row in cost.rows if row.step in PAIR_PRODUCTS
    )
    share = attention / cost_tables.total(cost, "matmul", choice.passes, choice.pairs)
    cache = kv_cache_bytes(config, cost.sizes.batch, context, cost.sizes.itemsize)
    panels.headline(
        [
            spell(cost.parameters, "parameters"),
            f"{PASS_WORDS[choice.passes]} {spell(choice.total('matmul'), UNITS[choice.unit][0])}",
            f"{spell(choice.total('elementwise'), 'elementwise operations')}",
            f"attention {share:.1%}",
            f"KV cache {spell_bytes(cache)} at {context:,} tokens",
        ]
    )
    st.caption(f"Attention is q·kᵀ and weights·v, as a share of the matmul {UNITS[choice.unit][0]}s.")


def bars(runs: Experiment) -> None:
    """Draw products and elementwise work by step."""
    choice = look(runs)
    left, right = st.columns(2, gap="medium")
    for column, kind, name in ((left, "matmul", "Matrix products"), (right, "elementwise", "Elementwise work")):
        unit = UNITS[choice.unit][0] if kind == "matmul" else "operations"
        with column:
            figure = cost_figures.step_bars(
                _bars_of(choice, kind, f"{name}, {PASS_WORDS[choice.passes]}", unit),
                is_masked=choice.cost.sizes.is_masked,
            )
            st.plotly_chart(figure, key=f"cost_bars_{kind}", theme=None, alt=f"{name} by step, in {unit}.")
    sizes = choice.cost.sizes
    if sizes.is_masked:
        st.caption(
            f"The mask allows {sizes.pairs:,} of {sizes.all_pairs:,} (query, key) pairs, "
            f"{100 * sizes.pairs / sizes.all_pairs:.3g}%. A dense kernel computes all of them and hides the rest."
        )


def _bars_of(choice: Choice, kind: str, title: str, unit: str) -> StepBars:
    def values(pairs: str) -> list[float]:
        flops = [cost_tables.work(row, kind, choice.passes, pairs) for row in choice.cost.rows]
        return [cost_tables.in_unit(count, choice.unit) if kind == "matmul" else count for count in flops]

    bars = [bar for bar in zip(choice.cost.rows, values("dense"), values("needed"), strict=True) if bar[1]]
    steps, dense, needed = tuple(row.step for row, _, _ in bars), tuple(b[1] for b in bars), tuple(b[2] for b in bars)
    return StepBars(title, unit, steps, dense, needed)


def table(runs: Experiment) -> None:
    """Show every step: formula, work, tensor, bytes, source."""
    choice = look(runs)
    frame = cost_tables.steps(choice.cost, choice.unit, choice.passes, choice.pairs)
    st.markdown(f"**Step by step** — {PASS_WORDS[choice.passes]}, {PAIR_WORDS[choice.pairs]}")
    st.dataframe(
        frame, hide_index=True, height="content", key="cost_steps", column_config=_grouped_digits(frame.columns)
    )
    panels.downloads(frame, "cost_steps")
    if choice.passes == "both" and choice.cost.totals["recompute_matmul_flops"]:
        st.caption("The fused kernel keeps no scores: backward computes q·kᵀ again, 2.5x the two products' forward.")
    with st.expander("How it is counted"):
        st.markdown("\n".join(f"- {panels.plain(convention)}" for convention in CONVENTIONS))
        st.caption(
            "In MAC the products are halved; elementwise work has no multiply-add and stays in operations. P is the "
            "number of pairs that the mask allows, summed over the batch."
        )


def _grouped_digits(columns: Iterable[str]) -> dict[str, Any]:
    numbers = {name: st.column_config.NumberColumn(format="localized") for name in columns if _is_number(name)}
    return numbers | {"step": st.column_config.TextColumn(pinned=True)}


def _is_number(name: str) -> bool:
    words = ("FLOP", "MAC", "operations", "bytes", "parameters")
    return any(word in name for word in words) and name != "bytes per number"


def truth(runs: Experiment) -> None:
    """Show every count of the products, ours first, with one sentence each."""
    choice = look(runs)
    frame = cost_tables.truth(compute.cost_truth(choice.experiment, choice.cost.input_gradient), choice.unit)
    st.markdown("**Who counts how?** — the same layer's matrix products, all pairs, counted in other ways")
    st.table(frame.set_index("count").map(panels.plain))
    panels.downloads(frame, "cost_truth")
    st.caption(
        "The counter is torch's FlopCounterMode, asked at this size on fake tensors: it counts by shapes, nothing is "
        "computed. Where it differs from the closed form on CPU, the counter is wrong, not the layer."
    )


def growth(runs: Experiment) -> None:
    """Draw the cost against the length, with the crossing."""
    choice = look(runs)
    sizes, cross = choice.cost.sizes, crossing(choice.cost.config)
    rows = compute.cost_growth_of(choice.experiment)
    name, factor = UNITS[choice.unit]
    figure = cost_figures.growth(rows, cross, (sizes.q_len, sizes.k_len), name, factor)
    st.plotly_chart(figure, key="cost_growth", theme=None, alt="Projections and attention against the length.")
    cross_note = " The lines are for Sq = Sk = S; here they differ." if sizes.q_len != sizes.k_len else ""
    st.caption(
        f"Attention overtakes the projections at S* = {cross.full_square:,.5g} tokens; where only the causal half is "
        f"computed, at {cross.causal_half:,.5g}.{cross_note}"
    )
    panels.downloads(cost_tables.growth(rows), "cost_growth")
    with st.expander("Where S* comes from"):
        st.markdown(
            panels.plain(
                f"The projections take p·S FLOPs, p = 2·(2·E·H·D + Hkv·D·(kdim + vdim)) = {cross.per_token_flops:,} "
                "(Kaplan et al. 2020, table 1). q·kᵀ and weights·v take 4·H·D·S² over the full square (Chowdhery et "
                "al. 2022, appendix B). They are equal at S* = p / (4·H·D), which is 2·E for plain self-attention. A "
                "causal mask needs S·(S + 1) / 2 pairs, and they are equal at 2·p / (4·H·D) - 1, which is 4·E - 1."
            )
        )


def groups(runs: Experiment) -> None:
    """Show what sharing key/value heads changes."""
    choice, context = look(runs), state.get("cost_context")
    frame = cost_tables.groups(groupings(choice.experiment, context), choice.unit)
    st.markdown("**Sharing key/value heads** — every Hkv that divides H")
    st.dataframe(frame, hide_index=True, key="cost_groups_table", column_config=_grouped_digits(frame.columns))
    panels.downloads(frame, "cost_groups")
    st.caption("The products of attention itself do not change: every query head still meets every key.")


def memory(runs: Experiment) -> None:
    """Show bytes by number format."""
    experiment, context = subject(runs), state.get("cost_context")
    frame = cost_tables.memory(memory_by_dtype(experiment, context))
    st.markdown(f"**Memory by number format** — one layer, KV cache of {context:,} tokens")
    st.dataframe(frame, hide_index=True, key="cost_memory_table", column_config=_grouped_digits(frame.columns))
    panels.downloads(frame, "cost_memory")
    cost = compute.cost(experiment, True)
    matrix = attention_matrix_bytes(cost.config, cost.sizes, cost.sizes.itemsize)
    st.caption(
        f"One matrix of weights, B·H·Sq·Sk numbers, is {spell_bytes(matrix)} in {experiment.dtype}: twice the length, "
        "four times the bytes. KV cache: 2·B·context·Hkv·D numbers. Activations: every step's tensor in the chosen "
        "kernel; without gradients mask and softmax work in place."
    )
