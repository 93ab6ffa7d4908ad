"""The one truth of a session: flat fields, kept in session state and mirrored in the address.

The only place that touches `st.session_state` and `st.query_params`. The fields are those of the experiment
(mha_core.fields) and of the view (ui.view); widgets are filled from them before they are drawn and write back through
`take`. A field set here is what every page shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment
from mha_core.fields import DEFAULTS, FIELDS, read_query, write_query
from mha_core.masks import parse_custom
from mha_core.sources.matrix_file import read_matrix
from ui.view import PARTS_OF_VIEW, VIEW_FIELDS

DEFAULT_SECOND_TEXT = "Das Tier überquerte die Straße nicht"
# Fields that decide which other controls are shown: the whole page is drawn again.
SHAPING = (
    *("source", "text", "memory_text", "embeddings", "batch", "positions", "mask", "init", "projection"),
    *("model", "replaced", "checkpoint", "real_view"),
)
ALL_FIELDS = FIELDS | VIEW_FIELDS
_FIELDS, _PROBLEMS = "fields", "link_problems"
_LAST_GOOD, _DRAFT, _PARTS, _PAGE, _PINNED = "last_good", "mask_draft", "page_parts", "page", "pinned"


def open_link(page: str) -> None:
    """Take over the address of a fresh session, and the one that "back" or "forward" brought.

    At any other time the address only follows: a rerun carries the address that the browser knew when it asked, which
    after quick changes is an older one, and changing pages drops the query.
    """
    if st.session_state.get(_PAGE) != page:
        st.session_state[_PAGE], st.session_state[_PARTS] = page, []
    st.session_state[_PINNED] = {}
    context = get_script_run_ctx()
    if _FIELDS not in st.session_state or (context is not None and context.is_history_navigation):
        query = st.query_params.to_dict()
        st.session_state[_FIELDS], st.session_state[_PROBLEMS] = read_query(query, ALL_FIELDS)


def pin(fields: dict[str, FieldValue]) -> None:
    """Give fields a value of their own on this page; the link and the other pages keep theirs."""
    st.session_state[_PINNED] = fields


def write_link() -> None:
    """Make the address say what the session shows."""
    query = write_query(st.session_state[_FIELDS], ALL_FIELDS)
    if query != st.query_params.to_dict():
        st.query_params.from_dict(query)


def link_problems() -> list[str]:
    """Give what was wrong with the link, one sentence each."""
    problems: list[str] = st.session_state[_PROBLEMS]
    return problems


def forget_problems() -> None:
    """Stop showing what was wrong with the link."""
    st.session_state[_PROBLEMS] = []


def get(name: str) -> Any:
    """Give the value of a field on this page."""
    pinned: dict[str, FieldValue] = st.session_state[_PINNED]
    return pinned[name] if name in pinned else st.session_state[_FIELDS][name]


def is_pinned(name: str) -> bool:
    """Say whether a field has a value of its own on this page."""
    return name in st.session_state[_PINNED]


def put(**changes: FieldValue) -> None:
    """Change fields; for callbacks, which run before the page is drawn again."""
    st.session_state[_FIELDS] = st.session_state[_FIELDS] | changes


def reset() -> None:
    """Return every field to its default."""
    put(**{name: field.default for name, field in ALL_FIELDS.items()})
    forget_problems()


def preset(**changes: FieldValue) -> None:
    """Set a whole experiment: these fields, and every other one to its default."""
    reset()
    put(**changes)


def fill(name: str, value: object) -> str:
    """Fill the widget of a field before it is drawn; returns the widget's key.

    A widget that holds the value already is left alone: a value written here would shadow what the person clicks while
    this run is still drawing. For the same reason a control also gets the value as its default: a new widget reports
    its bare default if the next click comes before the browser has taken over what is written here.
    """
    key = f"field_{name}"
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
    return key


def _from_widget(name: str, value: Any) -> FieldValue:
    kind = ALL_FIELDS[name].kind
    if kind == "ints":
        return tuple(str(number) for number in sorted(value))
    return tuple(value) if kind in ("flags", "heads") else value


def take(name: str) -> None:
    """Answer the change of a field's widget; the `on_change` of every control.

    Where no other control depends on the field, the parts that show it are drawn again and nothing else.
    """
    put(**{name: _from_widget(name, st.session_state[f"field_{name}"])})
    if name not in SHAPING:
        redraw(PARTS_OF_VIEW.get(name))


def redraw(parts: tuple[str, ...] | None = None) -> None:
    """Rerun some parts of the page and nothing else, or all of them; only for callbacks."""
    chosen = [name for name in st.session_state[_PARTS] if parts is None or name in parts]
    if chosen:
        st.rerun(chosen)


def redraw_nothing() -> None:
    """Answer an event that changes nothing that is shown."""


def add_part(name: str) -> None:
    """Note a part of this page; they are redrawn in the order they are noted."""
    if name not in st.session_state[_PARTS]:
        st.session_state[_PARTS].append(name)


def put_and_redraw(**changes: FieldValue) -> None:
    """Change fields from inside a part of the page, so that the sidebar's widgets follow."""
    put(**changes)
    st.rerun()


def take_second_text() -> None:
    """Begin or end cross-attention."""
    put(memory_text=DEFAULT_SECOND_TEXT if st.session_state["field_second_text"] else None)


def take_custom_mask() -> None:
    """Take the typed custom mask; what cannot be read stays in its box, with the reason."""
    _take_matrix(st.session_state["field_custom_mask"], lambda text: parse_custom(text) if text.strip() else None)


def take_custom_file() -> None:
    """Take an uploaded custom mask."""
    upload = st.session_state["custom_file"]
    if upload is not None:
        _take_matrix("", lambda _: read_matrix(upload.name, upload.getvalue()))


def _take_matrix(typed: str, read: Callable[[str], FieldValue]) -> None:
    try:
        put(custom_mask=read(typed))
        st.session_state[_DRAFT] = ("", None)
    except MhaError as error:
        st.session_state[_DRAFT] = (typed, error)
        put(custom_mask=None)


def mask_draft() -> tuple[str, MhaError | None]:
    """Give the custom mask that could not be read, and why."""
    draft: tuple[str, MhaError | None] = st.session_state.get(_DRAFT, ("", None))
    return draft


def take_event(key: str, event: str) -> Any:
    """Give the payload of a component's event, inside its callback."""
    return getattr(st.session_state[key], event, None)


def chosen_fields() -> dict[str, FieldValue]:
    """Give the fields of the experiment as they are chosen, also where they contradict one another."""
    return {name: get(name) for name in DEFAULTS}


def current_experiment() -> tuple[Experiment, MhaError | None]:
    """Build the experiment that the fields describe.

    Returns:
        The experiment and None; or, where the fields contradict one another, the last experiment that worked and the
        error that says why.
    """
    draft_error = mask_draft()[1]
    if draft_error is not None and "custom" in get("mask"):
        return last_good(), draft_error
    try:
        experiment = Experiment.from_fields(chosen_fields())
    except MhaError as error:
        return last_good(), error
    return experiment, None


def last_good() -> Experiment:
    """Give the last experiment that could be run, or the default one."""
    kept: Experiment = st.session_state.get(_LAST_GOOD, Experiment())
    return kept


def has_run() -> bool:
    """Say whether an experiment of this session could be run yet."""
    return _LAST_GOOD in st.session_state


def keep(experiment: Experiment) -> None:
    """Remember an experiment that can be run."""
    st.session_state[_LAST_GOOD] = experiment


def remember(name: str, value: object) -> None:
    """Keep a small fact for a later callback of this session."""
    st.session_state[f"memo_{name}"] = value


def recall(name: str, default: Any) -> Any:
    """Give a fact kept by `remember`."""
    return st.session_state.get(f"memo_{name}", default)
