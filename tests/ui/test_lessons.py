"""A mistake on the page is a lesson: one sentence, suggestions that repair it, and the last good picture below.

Every lesson a person can reach is reached here by a link, and every one of its buttons is pressed. What a person typed
is shown as it is: nothing of it becomes markup.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mha_core import Experiment, run
from mha_core.fields import FIELDS
from tests.ui.page import figures, grid, large_map, link, open_page, press, set_widget, shown, texts, whole

BASE = {"text": "one two three four", "embed_dim": "24", "num_heads": "4"}
LESSONS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "heads": ({"num_heads": "7", "embed_dim": "512"}, ("512 = 7 x 73 + 1",)),
    "kv heads": ({"num_kv_heads": "3"}, ("num_kv_heads 3",)),
    "odd rotary": ({"embed_dim": "20", "positions": "rotary"}, ("head_dim is 5",)),
    "odd untied heads": ({"head_size": "7", "positions": "rotary"}, ("head_size is 7, an odd number",)),
    "fused widths": ({"projection": "fused", "kdim": "11"}, ("kdim 11",)),
    "packed": ({"init_packed": "true"}, ("init_packed",)),
    "sdpa fill": ({"kernel": "sdpa", "fill": "-1e9"}, ("-1e9",)),
    "sdpa dropout": ({"kernel": "sdpa", "dropout": "0.5"}, ("dropout",)),
    "no matrix": ({"mask": "causal,custom"}, ("no matrix",)),
    "wrong matrix": ({"mask": "custom", "custom_mask": "111/111"}, ("2 x 3", "4 x 4")),
    "embeddings": ({"embeddings": "smollm2", "kdim": "11"}, ("576", "tokenizer is word, embed_dim is 24, kdim is 11")),
    "no token": ({"text": " "}, ("no token",)),
    "no second token": ({"memory_text": " "}, ("no token",)),
    "lines": ({"text": "a\nb", "memory_text": "a\nb\nc"}, ("2 lines", "3")),
    "many lines": ({"text": "x\n" * 600}, ("600 lines",)),
    "long text": ({"text": "word " * 2_000}, ("bytes",)),
    "long batch": ({"text": "word " * 1_500 + "\n" + "word " * 1_500}, ("bytes",)),
    "long characters": ({"text": "wörter " * 300, "tokenizer": "char"}, ("bytes",)),
    "large random": ({"source": "random", "q_len": "60000", "batch": "9"}, ("bytes", f"{4 * 9 * 4 * 60000**2:,}")),
    "large cross": ({"source": "random", "q_len": "60000", "k_len": "50000"}, ("bytes",)),
    "large width": ({"embed_dim": "16384"}, ("bytes",)),
}


def written(query: dict[str, str]) -> dict[str, str]:
    """The query as links write it: long texts packed."""
    return {name: FIELDS[name].write(text) if name == "text" else text for name, text in query.items()}


def said(page: Any) -> str:
    """The one error of a page, unescaped."""
    (error,) = page.error
    return re.sub(r"\\(.)", r"\1", error.value)


@pytest.mark.parametrize("name", LESSONS)
def test_each_lesson_and_each_repair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(32 * 2**20))  # so that what fits is computed quickly
    query, words = LESSONS[name]
    page = open_page(**written(BASE | query))
    sentence = said(page)
    assert [word for word in words if word not in sentence] == []
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert grid(page).header["heads"] == 8  # nothing worked before: the default picture
    assert large_map(page).values.tobytes() == run(Experiment()).weights[0, 0].numpy().tobytes()
    buttons = [str(button.key) for button in page.button if str(button.key).startswith("try_")]
    assert buttons or name == "large width"
    for number, key in enumerate(buttons):
        repaired = press(page if number == 0 else open_page(**written(BASE | query)), key)
        assert not repaired.error, (key, said(repaired))


def test_seven_heads_become_eight() -> None:
    page = open_page(num_heads="7")
    labels = {button.label.replace("\\", ""): str(button.key) for button in page.button}
    assert {"num_heads 4", "num_heads 8", "embed_dim 511", "embed_dim 518", "untie it: head_size 73"} <= set(labels)
    press(page, labels["num_heads 8"])
    assert not page.error
    assert shown(page).attention.num_heads == 8
    assert page.get_by_key("field_num_heads").value == 8
    page = press(open_page(num_heads="7"), labels["embed_dim 518"])
    assert (shown(page).attention.num_heads, shown(page).attention.embed_dim) == (7, 518)
    page = press(open_page(num_heads="7"), labels["untie it: head_size 73"])
    assert (shown(page).attention.embed_dim, shown(page).attention.head_dim) == (512, 73)
    assert page.get_by_key("field_head_size").value == 73
    assert grid(page).header["heads"] == 7


@pytest.mark.parametrize(
    ("name", "value"), [("q_len", 60_000), ("k_len", 65_536), ("batch", 512), ("embed_dim", 16_384)]
)
def test_too_large_keeps_the_last_picture(name: str, value: int) -> None:
    page = open_page(source="random", q_len="700" if name == "batch" else "5", batch="2", embed_dim="24", num_heads="4")
    before = large_map(page).values.tobytes()
    if name == "k_len":
        set_widget(page, "q_len", 60_000)
    set_widget(page, name, value)
    assert re.search(r"\d[\d,]+ bytes", said(page))
    assert large_map(page).values.tobytes() == before
    assert "last experiment that could be run" in texts(page)


def test_a_typed_mask_that_cannot_be_read() -> None:
    page = open_page(**BASE, mask="custom", custom_mask="1000/1100/1110/1111")
    before = large_map(page).values
    assert np.array_equal(np.isnan(before), ~np.tri(4, dtype=bool))
    set_widget(page, "custom_mask", "10\n12")
    assert "'2'" in said(page)
    assert np.array_equal(large_map(page).values, before, equal_nan=True)
    assert whole(page).get_by_key("field_custom_mask").value == "10\n12"  # to be mended, not retyped
    set_widget(page, "custom_mask", "1 1 1 1\n" * 4)
    assert not page.error
    assert not np.isnan(large_map(page).values).any()


def test_a_typed_mask_of_another_shape() -> None:
    page = open_page(**BASE, mask="custom", custom_mask="1000/1100/1110/1111")
    set_widget(page, "custom_mask", "111\n111")
    assert "2 x 3" in said(page)
    assert "4 x 4" in said(page)
    set_widget(page, "custom_mask", "111\n11")
    assert "equally long" in said(page)
    set_widget(page, "mask", ["causal"])  # the mask in question is put aside
    assert not whole(page).error
    assert shown(page).mask.kinds == ("causal",)


def test_a_file_that_is_no_mask() -> None:
    page = open_page(**BASE, mask="custom", custom_mask="1111/1111/1111/1111")
    page.file_uploader[0].upload("mask.npy", b"\x93NUMPY not really")
    page.run()
    assert not page.exception
    assert "npy" in said(page)


MARKUP = "<b>bold</b> ![i](http://example.org/i.png) [l](javascript:x) `c` $x$ **s** :red[r] <script>"


@pytest.mark.parametrize("panel", ["bars", "lines"])
def test_markup_in_pictures_is_text(panel: str) -> None:
    page = open_page(text=MARKUP, panel=panel, queries="0,1,2")
    for figure in figures(page):
        axes = [figure["layout"].get(f"{axis}axis", {}).get("ticktext", []) for axis in "xy"]
        labels = [label for axis in axes for label in axis]
        labels += [label for trace in figure["data"] for label in (trace.get("text") or [])]
        labels.append(figure["layout"]["title"]["text"])
        assert labels
        assert not [label for label in labels if "<" in label or ">" in label]
    assert any("&lt;" in str(figure) for figure in figures(page))
    assert "<" in grid(page).header["q"]  # put on the page as text, so not escaped here


def test_markup_in_sentences_is_text() -> None:
    """A token, a bad value and an unknown name, each shown in a sentence of the page."""
    page = open_page(text=MARKUP, mask="custom", custom_mask="1/1", **{"<i>x</i>": "1", "stage": "![p](http://e/p)"})
    assert "could not be used" in texts(page)
    width = len(grid(open_page(text=MARKUP)).header["q"])
    blind = ["1" * width] * (width - 9) + ["0" * width] * 9
    blank = open_page(text=MARKUP, mask="custom", custom_mask="/".join(blind))
    assert "No key is allowed" in texts(blank)
    for element in (*page.warning, *page.error, *blank.warning, *blank.error, *page.markdown, *blank.markdown):
        plain = re.sub(r"\\[^\w\s]", "", element.value)  # what is left is what Markdown would act on
        assert not re.search(r"[<>`*\[\]$]|!\[|:red", plain), plain
    assert link(blank)["text"] == MARKUP
