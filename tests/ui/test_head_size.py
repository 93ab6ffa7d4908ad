"""Every page with heads of a width of their own: E 14, H 6, Hkv 3, D 7, so H·D = 42."""

from __future__ import annotations

import pytest

from tests.ui.page import ATTENTION, open_page, whole

UNTIED = {"embed_dim": "14", "num_heads": "6", "num_kv_heads": "3", "head_size": "7"}
PAGES = (ATTENTION, "pages/2_Shapes.py", "pages/4_Cost.py", "pages/5_Engines.py")


def texts(page) -> str:
    return " ".join(str(element.value) for element in (*page.markdown, *page.caption)).replace("\\", "")


@pytest.mark.parametrize("script", PAGES)
def test_every_page_speaks_of_it(script: str) -> None:
    page = open_page(script, **UNTIED)
    assert not page.error
    assert page.get_by_key("field_head_size").value == 7


@pytest.mark.parametrize("bench", ["one_pass", "schemes", "matrices", "depth"])
def test_every_bench_speaks_of_it(bench: str) -> None:
    page = open_page("pages/3_Gradients.py", lab=bench, **UNTIED)
    assert not whole(page).error


def test_the_headline_says_how_wide_heads_are() -> None:
    """Parameters by hand: 2·E·H·D + 2·E·Hkv·D and biases H·D + 2·Hkv·D + E."""
    said = texts(open_page(**UNTIED))
    assert "6 heads (3 key/value) x 7" in said
    assert f"{(2 * 14 * 42 + 2 * 14 * 21 + 42 + 2 * 21 + 14) / 1e6:.3g} M parameters" in said


def test_the_index_map_splits_all_channels_of_the_heads() -> None:
    said = texts(open_page("pages/2_Shapes.py", index_s="1", index_e="40", **UNTIED))
    assert "(b, s, e) = (0, 1, 40) lands at (b, h, s, d) = **(0, 5, 1, 5)**" in said
