"""Page Real models against transformers itself: all heads, one layer of them, and models of other kinds.

The reference is a second copy of each model with transformers' own attention.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from mha_core.sources.models import loading as model_loading
from tests.core.small_models import eager
from tests.ui import page as pages
from tests.ui.page import (
    ATTENTION,
    figures,
    large_map,
    link,
    open_page,
    press,
    set_widget,
    texts,
    whole,
)
from tests.ui.real import LINES, REAL, MiniLM, answers, check_maps, copy_of, grids, said
from ui import real_models


def test_it_opens_with_the_heads_of_the_trained_model(minilm: MiniLM) -> None:
    page = open_page(REAL)
    message = grids(page)["all_heads_grid"]
    text = page.text_area(key="field_text").value
    check_maps(message, minilm.maps(text).flatten(0, 1))
    assert message.header["perLine"] == 12
    assert message.header["names"] == [f"{layer}.{head}" for layer in range(6) for head in range(12)]
    assert link(page) == {}
    assert "all-MiniLM-L6-v2 · 6 attention layers x 12 heads · 22.71 M parameters" in said(page)
    assert "computes the same" in said(page)
    assert not page.error


def test_the_sequence_that_is_chosen_is_the_one_shown(minilm: MiniLM) -> None:
    page = open_page(REAL, text=LINES, sequence="2", layer="3", head="5")
    wanted = minilm.maps(LINES, sample=2)
    check_maps(grids(page)["all_heads_grid"], wanted.flatten(0, 1))
    check_maps(grids(page)["head_grid"], wanted[3])
    real = minilm.read(LINES)["attention_mask"][2].bool()
    assert large_map(page).exact[:, real] == pytest.approx(wanted[3, 5][:, real].numpy(), abs=2e-6)
    assert large_map(page).hidden[:, ~real].all()


def test_heads_in_the_order_of_a_number(minilm: MiniLM) -> None:
    page = whole(set_widget(open_page(REAL), "real_sort", "previous"))
    maps = minilm.maps(page.text_area(key="field_text").value)
    numbers = maps.diagonal(-1, 2, 3).sum(-1) / maps.shape[-1]  # the first token has none before it
    ordered = sorted(numbers.flatten().tolist(), reverse=True)
    message = grids(page)["all_heads_grid"]
    places = [tuple(map(int, name.split(" · ")[0].split("."))) for name in message.header["names"]]
    assert [numbers[place].item() for place in places] == pytest.approx(ordered, abs=1e-5)
    assert [float(name.split(" · ")[1]) for name in message.header["names"]] == pytest.approx(ordered, abs=0.0051)
    check_maps(message, torch.stack([maps[place] for place in places]))
    page = whole(set_widget(page, "real_least", 10))
    kept = grids(page)["all_heads_grid"].header["names"]
    assert 0 < len(kept) == sum(number >= 0.1 for number in ordered) < 72
    page = whole(set_widget(page, "real_least", 100))
    assert "No head reaches that" in said(page)
    assert "all_heads_grid" not in grids(page)


def test_all_numbers_are_in_a_table(minilm: MiniLM) -> None:
    page = open_page(REAL)
    (table,) = (frame.value.set_index("layer.head") for frame in page.dataframe if "layer.head" in frame.value)
    maps = minilm.maps(page.text_area(key="field_text").value)
    assert len(table) == 72
    for name in ("0.2", "2.11", "5.7"):
        layer, head = map(int, name.split("."))
        own = maps[layer, head]
        assert table.loc[name, "first"] == pytest.approx(own[:, 0].mean().item(), abs=1e-5)
        assert table.loc[name, "diagonal"] == pytest.approx(own.diagonal().mean().item(), abs=1e-5)
        assert table.loc[name, "maximum"] == pytest.approx(own.amax(-1).mean().item(), abs=1e-5)
    assert (table["off, weights"] <= 1e-5).all()
    assert (table["off, output"] <= 1e-4).all()


def test_a_pick_of_a_small_map_chooses_layer_and_head(monkeypatch: pytest.MonkeyPatch, minilm: MiniLM) -> None:
    """A component cannot be clicked here: a button stands in its place, and its event says the 17th map."""
    shown = real_models.head_grid.head_grid

    def clickable(data: bytes, *, key: str, on_pick: Any) -> None:
        shown(data, key=key, on_pick=on_pick)
        if key == real_models.GRID_KEY:
            real_models.st.button("click", key="click", on_click=on_pick)

    monkeypatch.setattr(real_models.head_grid, "head_grid", clickable)
    monkeypatch.setattr(real_models.state, "take_event", lambda key, event: {"head": 17, "rows": [0]})
    page = whole(press(open_page(REAL, real_sort="maximum"), "click"))
    layer, head = grids(page)["all_heads_grid"].header["names"][17].split(" · ")[0].split(".")
    assert (link(page)["layer"], link(page)["head"]) == (layer, head)
    assert page.slider(key="field_layer").value == int(layer)
    assert grids(page)["all_heads_grid"].header["head"] == 17
    maps = minilm.maps(page.text_area(key="field_text").value)
    assert large_map(page).exact == pytest.approx(maps[int(layer), int(head)].numpy(), abs=2e-6)


def test_a_head_is_muted_and_speaks_again(minilm: MiniLM) -> None:
    page = whole(press(open_page(REAL, layer="2", head="7"), "mute_head"))
    assert link(page)["muted"] == "2.7"
    assert "as edited" in said(page)
    assert page.multiselect(key="field_muted").value == ["2.7"]
    maps = minilm.maps(page.text_area(key="field_text").value)
    check_maps(grids(page)["head_grid"], maps[2])  # it keeps its map
    page = whole(set_widget(page, "layer", 3))
    assert np.abs(large_map(page).exact - maps[3, 7].numpy()).max() > 1e-3  # later layers follow
    page = whole(press(page, "mute_head"))
    assert link(page)["muted"] == "2.7,3.7"
    page = whole(press(page, "mute_head"))
    assert link(page)["muted"] == "2.7"
    page = whole(press(page, "unmute"))
    assert "muted" not in link(page)
    assert large_map(page).exact == pytest.approx(maps[3, 7].numpy(), abs=2e-6)


def test_the_layer_goes_along_to_other_pages(minilm: MiniLM) -> None:
    page = whole(press(open_page(REAL, layer="4", head="9", text=LINES), "take_along"))
    query = link(page)
    assert query["source"] == "pretrained"
    page = open_page(ATTENTION, **query)
    check_maps(pages.grid(page), minilm.maps(LINES)[4])
    assert "source" in {str(widget.key).removeprefix("field_") for widget in page.button_group}
    assert link(whole(set_widget(page, "source", "text")))["layer"] == "4"


def test_an_encoder_decoder_pair_reads_two_texts(folders: dict[str, str]) -> None:
    first, second = "the cat sat on the mat", "we saw birds"
    page = open_page(REAL, model=folders["t5"], text=first, memory_text=second)
    module, tokenizer = copy_of(folders["t5"])
    ids, answered = (torch.tensor([tokenizer(text)["input_ids"]]) for text in (first, second))
    start = torch.tensor([[0]])
    maps = answers(module, input_ids=ids, decoder_input_ids=torch.cat([start, answered[:, :-1]], 1))
    wanted = [("encoder 0", maps.encoder_attentions[0]), ("decoder 0 cross", maps.cross_attentions[0])]
    sites = model_loading.load(folders["t5"]).sites
    for label, own in wanted:
        (index,) = [site.index for site in sites if site.label == label]
        page = whole(set_widget(page, "layer", index))
        assert f"{label.capitalize()}, head 0" in said(page)
        check_maps(grids(page)["head_grid"], own[0])
    assert page.text_area(key="field_memory_text").value == second
    assert grids(page)["all_heads_grid"].header["heads"] == 3 * len(sites)


def test_a_vision_model_sees_the_text_drawn(folders: dict[str, str]) -> None:
    page = open_page(REAL, model=folders["vit"], text="Hi")
    given = dict(model_loading.load(folders["vit"]).reader.read("Hi", None).arguments)
    module = eager(folders["vit"], model_loading.load(folders["vit"]).module)
    maps = answers(module, **given).attentions
    check_maps(grids(page)["all_heads_grid"], torch.cat([own[0] for own in maps]))
    assert "Note:" in said(page)
    page = whole(set_widget(page, "real_sort", "induction"))
    assert "a picture has no such number" in said(page)


def test_markup_in_a_text_is_shown_as_it_is(folders: dict[str, str]) -> None:
    evil = "<b>x</b> ![y](http://example.org/z) *a* | `c`"
    for query in ({}, {"real_view": "effects", "muted": "0.1"}):
        page = open_page(REAL, text=evil, **query)
        assert not page.error
        assert "![y](http" not in texts(page)
        assert "<b>" not in texts(page)
    page = open_page(REAL, text=evil, model=folders["gpt2"], real_view="effects", muted="0.1")
    for figure in figures(page):
        assert "<b>" not in json.dumps(figure["layout"])
