"""Reusable blocks of a page: plain text, the lesson of a mistake, metrics, findings, downloads."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from mha_core.errors import MhaError
from mha_core.lenses.findings import Finding
from ui import state

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:&])")
ALARMING = ("empty_rows", "not_finite", "fill_clamped", "padding_seen")


def plain(text: str) -> str:
    """Escape Markdown, so that a person's text is shown as it is and fetches nothing."""
    return _MARKUP.sub(r"\\\1", text)


def lesson(error: MhaError, shown_instead: str) -> None:
    """Show what is wrong and what would work, with a button for each suggestion, and what the page shows meanwhile."""
    with st.container(border=True, key="lesson"):
        st.error(plain(error.problem + "."))
        if error.try_:
            with st.container(horizontal=True):
                st.markdown("Try")
                for number, suggestion in enumerate(error.try_):
                    st.button(
                        plain(suggestion.text),
                        key=f"try_{number}",
                        on_click=state.put_and_redraw,
                        kwargs=dict(suggestion.changes),
                    )
        st.caption(f"Below: {shown_instead}.")


def link_problems(problems: Sequence[str]) -> None:
    """Name what was wrong in the link."""
    if not problems:
        return
    with st.container(border=True, key="link_problems"):
        st.warning(
            "Some settings in the link could not be used:\n" + "\n".join(f"- {plain(text)}" for text in problems[:8])
        )
        if len(problems) > 8:
            st.caption(f"and {len(problems) - 8} more")
        st.button("Understood", on_click=state.forget_problems)


def notices(findings: Sequence[Finding]) -> None:
    """Show what is worth noticing; nothing when there is nothing."""
    for finding in findings:
        (st.warning if finding.kind in ALARMING else st.info)(plain(finding.sentence))


def headline(facts: Sequence[str]) -> None:
    """Show the numbers of the experiment in one line."""
    st.markdown(" · ".join(plain(fact) for fact in facts))


def downloads(table: pd.DataFrame, name: str) -> None:
    """Offer a table as CSV and JSON.

    Args:
        name: of the file, without its ending; unique on the page.
    """
    with st.container(horizontal=True, horizontal_alignment="right"):
        for ending, mime, write in (
            ("csv", "text/csv", lambda: table.to_csv(index=False)),
            ("json", "application/json", lambda: table.to_json(orient="records", indent=2)),
        ):
            label, key = ending.upper(), f"{name}_{ending}"
            st.download_button(label, write, f"{name}.{ending}", mime, key=key, on_click="ignore", type="tertiary")
