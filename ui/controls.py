"""Widgets for fields: each is filled from its field, writes back to it, and takes its help from the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from ui import state

MAX_BROWSER_INT = 2**53 - 1  # the largest whole number that JavaScript keeps exactly


def _words(name: str) -> str:
    return name.replace("_", " ")


def choose(
    name: str, label: str, words: dict[str, str] | None = None, *, where: Any = st, hide_label: bool = False
) -> None:
    """Offer a choice field as a row of buttons."""
    field = state.ALL_FIELDS[name]
    where.segmented_control(
        label,
        field.choices,
        key=state.widget_key(name, state.get(name)),
        required=True,
        format_func=lambda choice: (words or {}).get(choice, _words(choice)),
        on_change=state.take,
        args=(name,),
        help=field.help,
        label_visibility="collapsed" if hide_label else "visible",
    )


def select(name: str, label: str, words: dict[str, str] | None = None) -> None:
    """Offer a choice field as a list to open, for many choices."""
    field = state.ALL_FIELDS[name]
    st.selectbox(
        label,
        field.choices,
        key=state.widget_key(name, state.get(name)),
        format_func=lambda choice: (words or {}).get(choice, _words(choice)),
        on_change=state.take,
        args=(name,),
        help=field.help,
    )


def flags(name: str, label: str) -> None:
    """Offer a field of which any subset may be chosen."""
    field = state.ALL_FIELDS[name]
    key = state.widget_key(name, list(state.get(name)))
    st.pills(
        label, field.choices, selection_mode="multi", key=key, on_change=state.take, args=(name, tuple), help=field.help
    )


def slide(name: str, label: str, low: int, high: int) -> None:
    """Offer a whole number as a slider; a larger number from a link stretches it."""
    value = state.get(name)
    key = state.widget_key(name, value)
    help_ = state.ALL_FIELDS[name].help
    st.slider(label, min(low, value), max(high, value), key=key, on_change=state.take, args=(name,), help=help_)


def number(name: str, label: str, *, step: float = 1, placeholder: str = "") -> None:
    """Offer a number to type; an optional one may be left empty."""
    field = state.ALL_FIELDS[name]
    convert: type[int] | type[float] = int if field.kind == "int" else float
    value = state.get(name)
    widest = min(field.maximum, MAX_BROWSER_INT)
    options: dict[str, Any] = {
        "min_value": convert(field.minimum),
        "max_value": convert(widest),
        "value": None if field.optional else "min",
        "step": convert(step),
        "key": state.widget_key(name, None if value is None else convert(min(value, widest))),
        "format": None if convert is int else "%g",
    }
    st.number_input(label, **options, placeholder=placeholder, on_change=state.take, args=(name,), help=field.help)


def switch(name: str, label: str) -> None:
    """Offer a yes-or-no field."""
    key = state.widget_key(name, state.get(name))
    st.toggle(label, key=key, on_change=state.take, args=(name,), help=state.ALL_FIELDS[name].help)


def write(name: str, label: str, height: int) -> None:
    """Offer a text to type; it is taken on Ctrl+Enter or when the box is left."""
    help_ = state.ALL_FIELDS[name].help
    key = state.widget_key(name, state.get(name) or "")
    st.text_area(label, key=key, height=height, on_change=state.take, args=(name,), help=help_)


def pick_many(name: str, label: str, chosen: Sequence[int], words: Sequence[str]) -> None:
    """Offer several of many numbered things."""
    st.multiselect(
        label,
        range(len(words)),
        key=state.widget_key(name, list(chosen)),
        format_func=lambda index: words[index],
        on_change=state.take,
        args=(name, lambda numbers: tuple(str(number) for number in sorted(numbers))),
    )
