"""A check-up as cards: the verdict, what is wrong first, then what is unusual, and at last what is fine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import streamlit as st

from mha_core.doctor.html_report import to_html
from mha_core.doctor.report import QUESTIONS, CheckResult, Report, Status
from mha_core.doctor.report_groups import TITLES, VERDICTS, WORDS, groups, spell
from ui import panels

COLOURS: dict[Status, Literal["red", "orange", "blue", "green", "gray"]] = {
    "fail": "red",
    "warn": "orange",
    "by_design": "blue",
    "pass": "green",
    "not_applicable": "gray",
}


def draw(report: Report, name: str) -> None:
    """Draw a report with its downloads.

    Args:
        name: of the downloaded files; unique on the page.
    """
    counts = Counter(check.status for check in report.checks)
    facts = [f"{counts[status]} {words}" for status, words in WORDS.items() if counts[status]]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(f"verdict: {report.verdict}", color=COLOURS[report.verdict])
        st.markdown(f"**{panels.plain(report.module)}** · {' · '.join(facts)}", width="content")
    st.caption(VERDICTS[report.verdict])
    _start_here(report)
    for status, pairs in groups(report):
        if status in ("fail", "warn"):
            for names, check in pairs:
                _card(names, check)
        else:
            ids = ", ".join(_spaced(names) for names, _ in pairs)
            with st.expander(f"{TITLES[status]}: {ids}"):
                for names, check in pairs:
                    _card(names, check)
    with st.expander("Taken for granted"):
        _table(report.as_dict()["assumed"])
        st.caption("Each can be corrected by an option of the command; see its help.")
    _downloads(report, name)


def _start_here(report: Report) -> None:
    """Name the line that most failures point to."""
    places = Counter(check.where for check in report.checks if check.status == "fail" and check.where is not None)
    for place, count in places.most_common(1):
        if count > 1:
            st.info(panels.plain(f"Start with {place.file}, line {place.line}: {count} failed checks point to it."))


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _card(names: str, check: CheckResult) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(WORDS[check.status], color=COLOURS[check.status])
            st.markdown(f"**{_spaced(names)}**", width="content")
        if names == check.id:
            st.caption(QUESTIONS[check.id])
        st.markdown(panels.plain(check.reason[:1].upper() + check.reason[1:]))
        if check.cause:
            st.markdown(f"Likely cause: {panels.plain(check.cause)}")
        if check.where is not None:
            st.caption(panels.plain(f"{check.where.file}, line {check.where.line}"))
            if check.where.code:
                st.code(check.where.code, language="python", wrap_lines=True)
        if check.evidence:
            with st.popover("Numbers", type="tertiary"):
                _table(check.as_dict()["evidence"])


def _table(pairs: Mapping[str, Any]) -> None:
    """Show names and values, each as it is written: `st.table` would read them as Markdown."""
    names, values = [panels.plain(_spaced(name)) for name in pairs], [panels.plain(spell(v)) for v in pairs.values()]
    st.table({"what": names, "value": values})


def _downloads(report: Report, name: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="right"):
        for ending, mime, content in (
            ("html", "text/html", lambda: to_html(report)),
            ("json", "application/json", lambda: json.dumps(report.as_dict(), indent=2)),
        ):
            st.download_button(
                ending.upper(), content, f"{name}.{ending}", mime, key=f"{name}_{ending}", on_click="ignore",
                type="tertiary",
            )  # fmt: skip
