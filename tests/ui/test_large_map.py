"""The message of the large map: exact values, hidden cells apart from NaN, labels as text."""

from __future__ import annotations

import numpy as np

from tests.ui.page import large_map as shown_map
from tests.ui.page import open_page, read_large_map
from ui import theme
from ui.large_map import MapLook, map_message


def test_values_travel_exactly_and_hidden_is_not_nan() -> None:
    values = np.array([[0.1, np.nan, -2.5], [np.inf, 1e-30, 7.0]], dtype=np.float32)
    hidden = np.array([[True, False, False], [False, False, True]])
    look = MapLook(
        "T", "weights", theme.SEQUENTIAL_TABLE, "linear", -1.0, np.inf, ["<b>a</b>", "b" * 99], ["x", "y", "z"]
    )
    message = read_large_map(map_message(values, hidden, look))
    assert np.array_equal(message.exact, values, equal_nan=True)
    assert np.array_equal(message.hidden, hidden)
    assert message.header["q"][0] == "<b>a</b>"  # put on the page as text, so not escaped here
    assert len(message.header["q"][1]) == 24
    assert message.header["range"] == [-1.0, 0.0]  # JSON has no infinity


def test_a_nan_on_the_page_is_not_hidden() -> None:
    """A row that may attend to nothing, filled with minus infinity, is NaN: marked, and apart from what is hidden."""
    page = open_page(text="a b c", embed_dim="14", num_heads="2", mask="custom", custom_mask="101/000/111", fill="-inf")
    message = shown_map(page)
    allowed = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    assert np.array_equal(message.hidden, ~allowed)
    assert np.isnan(message.exact[1]).all() or message.hidden[1].all()
    assert np.isfinite(message.exact[allowed]).all()
