"""A check-up as cards: the verdict, what is wrong first, then what is unusual, and at last what is fine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import streamlit as st

from mha_core.doctor.html_report import to_html
from mha_core.doctor.report import QUESTIONS, CheckResult, Report, Status
from ui import panels

WORDS: dict[Status, str] = {
    "fail": "failed",
    "warn": "warned",
    "by_design": "by design",
    "pass": "passed",
    "not_applicable": "not asked",
}
COLOURS: dict[Status, Literal["red", "orange", "blue", "green", "gray"]] = {
    "fail": "red",
    "warn": "orange",
    "by_design": "blue",
    "pass": "green",
    "not_applicable": "gray",
}
OPEN: tuple[Status, ...] = ("fail", "warn")


def draw(report: Report, name: str) -> None:
    """Draw a report with its downloads.

    Args:
        name: of the downloaded files; unique on the page.
    """
    counts = Counter(check.status for check in report.checks)
    facts = [f"{counts[status]} {words}" for status, words in WORDS.items() if counts[status]]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(f"verdict: {report.verdict}", color=COLOURS[report.verdict])
        st.markdown(f"**{panels.plain(report.module)}** · {' · '.join(facts)}")
    _start_here(report)
    for status in OPEN:
        for check in of_status(report, status):
            _card(check)
    for status in ("by_design", "pass", "not_applicable"):
        checks = of_status(report, status)
        if checks:
            with st.expander(f"{len(checks)} {WORDS[status]}: {', '.join(spelled(check) for check in checks)}"):
                for check in checks:
                    _card(check)
    with st.expander("What was taken for granted"):
        st.table({"what": list(report.assumed), "taken as": [_spell(value) for value in report.assumed.values()]})
        st.caption("Each can be corrected by an option of the command; see its help.")
    _downloads(report, name)


def _start_here(report: Report) -> None:
    """Name the line that most failures point to."""
    places = Counter(check.where for check in of_status(report, "fail") if check.where is not None)
    for place, count in places.most_common(1):
        if count > 1:
            st.info(panels.plain(f"Start with {place.file}, line {place.line}: {count} failed checks point to it."))


def of_status(report: Report, status: Status) -> Sequence[CheckResult]:
    """Give the checks that ended so, in the report's order."""
    return [check for check in report.checks if check.status == status]


def spelled(check: CheckResult) -> str:
    """Give a check's id as words."""
    return check.id.replace("_", " ")


def _card(check: CheckResult) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(WORDS[check.status], color=COLOURS[check.status])
            st.markdown(f"**{spelled(check)}**")
            st.caption(QUESTIONS[check.id])
        st.markdown(panels.plain(check.reason[:1].upper() + check.reason[1:]))
        if check.cause:
            st.markdown(f"Likely cause: {panels.plain(check.cause)}")
        if check.where is not None:
            st.caption(panels.plain(f"{check.where.file}, line {check.where.line}"))
            if check.where.code:
                st.code(check.where.code, language="python")
        if check.evidence:
            with st.popover("Numbers", type="tertiary"):
                plain = check.as_dict()["evidence"]
                st.table({"number": list(plain), "value": [_spell(value) for value in plain.values()]})


def _spell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str)
    return str(value)


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
