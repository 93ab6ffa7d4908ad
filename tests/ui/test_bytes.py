"""What one run of the page sends, added up element by element: with eight heads at most 300 kB, whatever the length.

An upper bound: Streamlit replaces unchanged messages by a reference, and the frame around each message is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.page import grid, open_page

MAX_PAGE_BYTES, MAX_GRID_BYTES = 300_000, 150_000


def elements(node: Any) -> Iterator[Any]:
    """Every element of a page."""
    children = getattr(node, "children", {})
    for child in children.values():
        yield from elements(child)
    if not children:
        yield node


def page_bytes(page: Any) -> int:
    """The sizes of all messages that carry an element."""
    protos = [getattr(element, "proto", None) for element in elements(page._tree)]
    return sum(proto.ByteSize() for proto in protos if proto is not None)


@pytest.mark.parametrize("stage", ["weights", "scores"])
@pytest.mark.parametrize("length", [64, 256, 700])
@pytest.mark.parametrize("panel", ["none", "bars"])
def test_one_page_of_words(length: int, stage: str, panel: str) -> None:
    """Words of many letters, each another one, so that labels are as long as they get."""
    words = " ".join(f"überraschend{number}" for number in range(length))
    page = open_page(text=words, embed_dim="64", stage=stage, panel=panel, head="3")
    assert grid(page).header["heads"] == 8
    assert grid(page).size_bytes <= MAX_GRID_BYTES
    total = page_bytes(page)
    assert grid(page).size_bytes < total <= MAX_PAGE_BYTES


@pytest.mark.parametrize("length", [256, 700])
def test_one_page_of_noise(length: int) -> None:
    page = open_page(source="random", batch="1", q_len=str(length), embed_dim="128", stage="scores", seed="5")
    assert grid(page).size_bytes <= MAX_GRID_BYTES
    assert page_bytes(page) <= MAX_PAGE_BYTES


@pytest.mark.parametrize("panel", ["lines", "statistics", "similarity"])
def test_the_panels(panel: str) -> None:
    page = open_page(source="random", batch="1", q_len="300", embed_dim="64", panel=panel, line_heads="all")
    assert page_bytes(page) <= MAX_PAGE_BYTES
