"""Widgets for fields: each is filled from its field, writes back to it, and takes its help from the registry.

Each gets its value twice, as session state and as its default; `ui.state.fill` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from ui import state

MAX_BROWSER_INT = 2**53 - 1  # the largest whole number that JavaScript keeps exactly


def _wired(name: str, value: object) -> dict[str, Any]:
    """What every control has: the field's value in its key, its callback and its help."""
    help_ = state.ALL_FIELDS[name].help
    return {"key": state.fill(name, value), "on_change": state.take, "args": (name,), "help": help_}


def _spelled(choices: Sequence[str], words: dict[str, str] | None) -> dict[str, str]:
    """How each choice reads: in the given words, or by its name."""
    return {choice: (words or {}).get(choice, choice.replace("_", " ")) for choice in choices}


def choose(name: str, label: str, words: dict[str, str] | None = None) -> None:
    """Offer a choice field as a row of buttons."""
    choices, value = state.ALL_FIELDS[name].choices, state.get(name)
    shown = _spelled(choices, words)
    options = _wired(name, value) | {"format_func": shown.__getitem__, "required": True}
    st.segmented_control(label, choices, default=value, **options)


def select(name: str, label: str, words: dict[str, str] | None = None) -> None:
    """Offer a choice field as a list to open, for many choices."""
    choices, value = state.ALL_FIELDS[name].choices, state.get(name)
    shown = _spelled(choices, words)
    st.selectbox(label, choices, choices.index(value), format_func=shown.__getitem__, **_wired(name, value))


def flags(name: str, label: str) -> None:
    """Offer a field of which any subset may be chosen."""
    value = list(state.get(name))
    st.pills(label, state.ALL_FIELDS[name].choices, selection_mode="multi", default=value, **_wired(name, value))


def slide(name: str, label: str, low: int, high: int) -> None:
    """Offer a whole number as a slider; a larger number from a link stretches it."""
    value = state.get(name)
    st.slider(label, min(low, value), max(high, value), value, **_wired(name, value))


def number(name: str, label: str, *, step: float = 1, placeholder: str = "") -> None:
    """Offer a number to type; an optional one may be left empty."""
    field = state.ALL_FIELDS[name]
    convert: type[int] | type[float] = int if field.kind == "int" else float
    widest = min(field.maximum, MAX_BROWSER_INT)
    value = None if state.get(name) is None else convert(min(state.get(name), widest))
    options = _wired(name, value) | {"step": convert(step), "format": None if convert is int else "%g"}
    default = None if field.optional else value  # a number with a default cannot be emptied
    st.number_input(label, convert(field.minimum), convert(widest), default, placeholder=placeholder, **options)


def switch(name: str, label: str) -> None:
    """Offer a yes-or-no field."""
    value = state.get(name)
    st.toggle(label, value, **_wired(name, value))


def write(name: str, label: str, height: int) -> None:
    """Offer a text to type; it is taken on Ctrl+Enter or when the box is left."""
    value = state.get(name) or ""
    st.text_area(label, value, height=height, **_wired(name, value))


def pick_many(name: str, label: str, chosen: Sequence[int], words: Sequence[str]) -> None:
    """Offer several of many numbered things."""
    value = list(chosen)
    st.multiselect(label, range(len(words)), value, format_func=words.__getitem__, **_wired(name, value))


def pick_one(name: str, label: str, choices: Sequence[str], value: str, words: dict[str, str]) -> None:
    """Offer some of a field's choices, as a list to open; `value` is the one that is shown now."""
    st.selectbox(label, choices, choices.index(value), format_func=words.__getitem__, **_wired(name, value))


def count(name: str, label: str, highest: int) -> None:
    """Offer a number from 0 to the highest that there is now."""
    value = min(state.get(name), highest)
    st.number_input(label, 0, highest, value, width=150, **_wired(name, value))


def pick_or_write(name: str, label: str, words: dict[str, str], placeholder: str) -> None:
    """Offer a text field as a list of known values, in which another may be typed."""
    value = state.get(name)
    choices = list(dict.fromkeys([*words, value]))
    st.selectbox(
        label,
        choices,
        choices.index(value),
        format_func=lambda choice: words.get(choice, choice),
        accept_new_options=True,
        placeholder=placeholder,
        **_wired(name, value),
    )


def pick_words(name: str, label: str, words: Sequence[str], placeholder: str) -> None:
    """Offer several of many words."""
    value = list(state.get(name))
    choices = list(dict.fromkeys([*words, *value]))
    st.multiselect(label, choices, value, placeholder=placeholder, **_wired(name, value))
