"""The parts of page 5: do all variants agree, how long does each take, and which claims hold?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.lenses import benchmark
from mha_core.lenses.bench_claims import Claim, answer
from mha_core.lenses.bench_reference import TOLERANCE_REASON
from mha_core.lenses.benchmark import Measurement, Plan
from ui import compute, controls, engines_figures, jobs, panels, state

JOB = "bench"
BADGES = {"holds": "blue", "does not hold": "orange"}
COLUMNS = {
    "variant": ("variant", None),
    "dtype": ("number format", None),
    "q_len": ("Sq", None),
    "pass": ("pass", None),
    "median_ms": ("median, ms", "%.3f"),
    "low_quartile_ms": ("lower quartile, ms", "%.3f"),
    "high_quartile_ms": ("upper quartile, ms", "%.3f"),
    "runs": ("runs", None),
    "peak_extra_bytes": ("peak extra bytes", "localized"),
    "max_difference": ("largest difference", "%.1e"),
    "tolerance": ("allowed", "%.1e"),
    "max_weight_difference": ("of weights", "%.1e"),
    "weight_tolerance": ("allowed for weights", "%.1e"),
    "max_relative_gradient_difference": ("of gradients, relative", "%.1e"),
    "gradient_tolerance": ("allowed for gradients", "%.1e"),
    "agrees": ("agrees", None),
    "warnings": ("warnings", None),
    "not_measured_because": ("not measured because", None),
}
_OUTPUT, _WEIGHTS = ("max_difference", "tolerance"), ("max_weight_difference", "weight_tolerance")
OF_AGREEMENT = ("variant", "dtype", "agrees", *_OUTPUT, *_WEIGHTS)
KINDS = {"too_short": "Too short or too few runs to trust", "noisy": "Noisy", "slow_format": "Slow number format"}


def _table(rows: Sequence[Measurement]) -> pd.DataFrame:
    """Write measurements as a table; warnings by their kinds."""
    table = pd.DataFrame([row.as_row() for row in rows])
    table["warnings"] = [", ".join(dict.fromkeys(warning.kind for warning in row.warnings)) for row in rows]
    table["agrees"] = table["agrees"].map({True: "yes", False: "NO"}).fillna("not run")
    return table


def _show(table: pd.DataFrame, columns: Sequence[str], key: str) -> None:
    looks = {name: _column(*COLUMNS[name]) for name in columns}
    st.dataframe(table[list(columns)], hide_index=True, column_config=looks, height=320, key=key)


def _column(label: str, format_: str | None) -> ColumnConfig:
    if format_ is None:
        return st.column_config.Column(label)
    return st.column_config.NumberColumn(label, format=format_)


def agreement(experiment: Experiment) -> None:
    """Compare every variant with the float64 reference."""
    dtypes = state.get("bench_dtypes")
    if not dtypes:
        st.info("Choose at least one number format below.")
        return
    rows = compute.agreement(experiment, tuple(sorted(dtypes, key=benchmark.DTYPES.index)))
    ran = [row for row in rows if row.differences is not None]
    off = [f"{row.variant.name}, {row.variant.dtype}" for row in ran if not row.agrees]
    if not ran:
        st.info("No variant can be compared on this experiment.")
        _cannot(rows)
        return
    panels.headline([f"{len(ran) - len(off)} of {len(ran)} variants agree with the float64 reference", *_worst(ran)])
    if off:
        st.warning(panels.plain(f"Not within what rounding explains: {', '.join(off)}."))
    _cannot(rows)
    table = _table(rows)
    _show(table, OF_AGREEMENT, "agreement_table")
    panels.downloads(table, "agreement")
    sizes = f"{rows[0].batch} x {rows[0].q_len} queries x {rows[0].k_len} keys"
    dropout = " Dropout is off here, so that numbers can be compared." if experiment.attention.dropout else ""
    st.caption(f"One forward pass each, {sizes}, same weights, inputs and mask for all.{dropout}")
    with st.expander("What is allowed, and why"):
        st.markdown(panels.plain(TOLERANCE_REASON))
        st.markdown(
            "The reference is the equation written out (explicit kernel, three projections) with the same weights in "
            "float64. A difference is the largest one of any number of the output, or of the attention weights."
        )


def _worst(ran: Sequence[Measurement]) -> list[str]:
    """The largest difference of each number format."""
    worst: dict[str, float] = {}
    for row in ran:
        if row.differences is not None:
            worst[row.variant.dtype] = max(worst.get(row.variant.dtype, 0.0), row.differences.output)
    return [f"{dtype} within {difference:.1e}" for dtype, difference in worst.items()]


def _cannot(rows: Sequence[Measurement]) -> None:
    """Name what cannot compute this experiment, and why."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row.variant.name)
    for reason, names in reasons.items():
        st.caption(panels.plain(f"Not possible here: {', '.join(dict.fromkeys(names))}: {reason}."))


def measure(experiment: Experiment) -> None:
    """Offer a measurement, and show the one that is running or done."""
    left, right = st.columns(2)
    with left:
        controls.flags("bench_lengths", "Lengths Sq, tokens")
        controls.flags("bench_passes", "Pass")
    with right:
        controls.flags("bench_dtypes", "Number formats")
        controls.number("bench_seconds", "Seconds for each length and pass")
    plan = _plan(experiment)
    st.button("Measure", key="bench_measure", on_click=_start, args=(plan,), disabled=plan is None, type="primary")
    st.caption(
        f"On {benchmark.machine()['threads']} torch thread of this server: it serves many people side by side. "
        "The command `python -m mha_core bench --threads N` measures with more."
    )

    def draw(job: jobs.Job[Measurement]) -> None:
        _results(job, plan)

    jobs.watch(JOB, draw)


def _plan(experiment: Experiment) -> Plan | None:
    """Make the plan that the controls describe; None where something is left out."""
    lengths = sorted(map(int, state.get("bench_lengths")))
    passes, dtypes = (
        tuple(sorted(state.get(name), key=order.index))
        for name, order in (("bench_passes", benchmark.PASSES), ("bench_dtypes", benchmark.DTYPES))
    )
    try:
        return Plan(experiment, tuple(lengths), passes, dtypes, state.get("bench_seconds"))
    except MhaError as error:
        st.info(panels.plain(f"{error}"))
        return None


def _about(plan: Plan) -> str:
    """What a measurement belongs to."""
    return f"{plan.experiment.to_json()} {plan.lengths} {plan.passes} {plan.dtypes}"


def _start(plan: Plan) -> None:
    jobs.start(JOB, benchmark.measure(plan), plan.total, _about(plan))


def _results(job: jobs.Job[Measurement], plan: Plan | None) -> None:
    rows = benchmark.latest(list(job.results))
    if plan is not None and job.about != _about(plan):
        st.warning("The experiment or the choices above have changed since this was measured.")
    if not rows:
        return
    table = _table(rows)
    _show(table, list(COLUMNS), "bench_table")
    if job.is_running:
        return
    panels.downloads(table, "engines")
    _warn(rows)
    _plots(rows)
    _claims(answer(rows))


def _warn(rows: Sequence[Measurement]) -> None:
    """Say plainly what makes the times doubtful, each thing once."""
    cannot = dict.fromkeys(f"{row.variant.name} at {row.q_len}: {row.reason}" for row in rows if row.reason)
    lines = [f"Not measured: {sentence}." for sentence in list(cannot)[:6]]
    lines += [f"and {len(cannot) - 6} more, named in the table."] if len(cannot) > 6 else []
    for kind, words in KINDS.items():
        found = [row for row in rows if any(warning.kind == kind for warning in row.warnings)]
        if found:
            example = next(warning.sentence for warning in found[0].warnings if warning.kind == kind)
            lines.append(f"{words}, {len(found)} of {len(rows)} rows. {found[0].variant.name}: {example}")
    lines += dict.fromkeys(w.sentence for row in rows for w in row.warnings if w.kind == "threads")
    if lines:
        st.markdown("Read with care:\n" + "\n".join(f"- {panels.plain(line)}" for line in lines))


def _plots(rows: Sequence[Measurement]) -> None:
    timed = [row for row in rows if row.timing is not None]
    lengths = {row.q_len for row in timed}
    dtypes = [dtype for dtype in benchmark.DTYPES if any(row.variant.dtype == dtype for row in timed)]
    if len(lengths) > 1 and len(dtypes) > 1:
        controls.choose("bench_shown", "Plots show")
    shown = state.get("bench_shown") if state.get("bench_shown") in dtypes else next(iter(dtypes), "")
    for pass_ in dict.fromkeys(row.pass_ for row in timed):
        of_pass = [row for row in timed if row.pass_ == pass_]
        if len({row.q_len for row in of_pass}) > 1:
            of_pass, draw, what = [r for r in of_pass if r.variant.dtype == shown], engines_figures.lines, shown
        else:
            draw, what = engines_figures.bars, f"Sq {of_pass[0].q_len:,}"
        for side, quantity in zip(st.columns(2), (engines_figures.TIME, engines_figures.MEMORY), strict=True):
            title = f"{quantity.name.capitalize()}, {pass_}, {what}"
            with side:
                key, alt = f"{quantity.unit}_{pass_}", f"{title}: one mark for each variant of the table above."
                st.plotly_chart(draw(of_pass, quantity, title), key=key, theme=None, alt=alt)
    if timed:
        of_lines = " Dashed: fused projection, or no weights. Crosses: einops." if len(lengths) > 1 else ""
        st.caption(
            "Time is the median, whiskers the quartiles. Memory is the most that torch held at one time beyond weights "
            f"and inputs.{of_lines}"
        )


def _claims(claims: Sequence[Claim]) -> None:
    """Answer the claims of the two articles."""
    st.markdown("##### What two articles claim, on this machine")
    said: str | None = None
    for claim in claims:
        if claim.name != said:
            said = claim.name
            st.markdown(f"**{panels.plain(claim.claim)}**")
            st.caption(panels.plain(f"“{claim.quote}” ({claim.wording})"))
        badge = f":{BADGES.get(claim.verdict, 'gray')}-badge[{claim.verdict}]"
        st.markdown(f"{badge} {panels.plain(claim.sentence)}")
    panels.downloads(pd.DataFrame([vars(claim) for claim in claims]), "claims")
