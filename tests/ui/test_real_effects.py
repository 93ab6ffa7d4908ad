"""What edits do to a model, as page Real models shows it, against a second copy of the model changed by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.core.small_models import TEXT
from tests.ui.page import (
    figures,
    link,
    open_page,
    press,
    set_widget,
    whole,
)
from tests.ui.real import LINES, REAL, MiniLM, answers, check_maps, copy_of, grids, said

EDIT_FIELDS = {"own_mask", "mask", "scale", "muted", "replaced", "reach"}


def test_nothing_is_shown_before_an_edit(folders: dict[str, str]) -> None:
    page = open_page(REAL, real_view="effects", model=folders["gpt2"], text="the cat sat")
    assert "Nothing is edited yet" in said(page)
    assert not figures(page)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_next_tokens_before_and_after_an_edit(folders: dict[str, str], family: str) -> None:
    page = open_page(REAL, real_view="effects", model=folders[family], text=TEXT, layer="1", sequence="1")
    page = whole(press(page, "edit_Mute this layer"))
    module, tokenizer = copy_of(folders[family])
    ids = torch.tensor([tokenizer(TEXT.splitlines()[1])["input_ids"]])
    before = answers(module, input_ids=ids).logits[0, -1].softmax(-1)
    last = module.transformer.h[1].attn.c_proj if family == "gpt2" else module.model.layers[1].self_attn.o_proj
    last.weight.data.zero_()
    after = answers(module, input_ids=ids).logits[0, -1].softmax(-1)
    likely = sorted({*before.topk(8).indices.tolist(), *after.topk(8).indices.tolist()})
    pairs = sorted(((before[i].item(), after[i].item()) for i in likely), key=lambda pair: -max(pair))[:8]
    (figure,) = figures(page)
    drawn = np.array([bar["x"] for bar in figure["data"]]).T
    assert [bar["name"] for bar in figure["data"]] == ["before", "after"]
    assert drawn == pytest.approx(np.array(pairs), rel=1e-4, abs=1e-7)
    divergence = (before * (before.log() - after.log())).sum().item()
    told = re.search(r"differs by (\S+) nats", said(page))
    assert told is not None
    assert float(told[1]) == pytest.approx(divergence, rel=0.01)
    assert "No weight of this layer changes" in said(page)


EDITS = {  # which of them change the maps of the first layer
    "Let it see everything": True,
    "Temperature 3 everywhere": True,
    "Mute this layer": False,
    "Zero v here": False,
    "Fresh q and k here": True,
    "Mute the strongest induction heads": False,
}


@pytest.mark.parametrize(("edit", "changes_maps"), EDITS.items(), ids=EDITS)
def test_every_offered_edit_has_an_effect(folders: dict[str, str], edit: str, changes_maps: bool) -> None:
    page = open_page(REAL, real_view="effects", model=folders["gpt2"], text="the cat sat on the mat")
    page = whole(press(page, f"edit_{edit}"))
    assert "Edited:" in said(page)
    (figure,) = figures(page)
    before, after = (bar["x"] for bar in figure["data"])
    assert np.abs(before - after).max() > 1e-5
    assert ("effects_grid" in grids(page)) == changes_maps
    if changes_maps:
        shown = {which: grids(whole(set_widget(page, "real_maps", which)))["effects_grid"] for which in
                 ("before", "after", "difference")}  # fmt: skip
        module, tokenizer = copy_of(folders["gpt2"])
        ids = torch.tensor([tokenizer("the cat sat on the mat")["input_ids"]])
        check_maps(shown["before"], answers(module, input_ids=ids).attentions[0][0])
        change = shown["after"].values() - shown["before"].values()
        slack = sum(message.tolerance() for message in shown.values())
        assert (np.abs(change - shown["difference"].values()) <= slack).all()
        assert np.abs(change).max() > 0.01
    page = whole(press(page, "edit_Undo all edits"))
    assert "Nothing is edited yet" in said(page)
    assert not EDIT_FIELDS & set(link(page))


def test_the_future_is_seen_where_the_mask_is_left_out(folders: dict[str, str]) -> None:
    page = open_page(REAL, real_view="effects", model=folders["gpt2"], text="the cat sat on the mat")
    page = whole(press(page, "edit_Let it see everything"))
    page = whole(set_widget(page, "real_maps", "after"))
    later = np.triu(np.ones((6, 6), bool), 1)
    assert (grids(page)["effects_grid"].values()[:, later] > 0).any(1).all()


def test_the_classic_check_runs_when_asked(folders: dict[str, str]) -> None:
    page = open_page(REAL, real_view="effects", model=folders["llama"], muted="0.0", text="the cat sat")
    assert len(figures(page)) == 1
    page = whole(press(page, "run_repeat"))
    drawn = figures(page)[1]["data"][0]
    assert drawn["x"][0] == "nothing muted"
    assert ((drawn["y"] > 0) & (drawn["y"] < 1)).all()


def test_sentences_before_and_after_an_edit(minilm: MiniLM) -> None:
    page = whole(press(open_page(REAL, real_view="effects", text=LINES, layer="2"), "edit_Mute this layer"))
    before, after = (figure["data"][0]["z"] for figure in figures(page))
    assert before == pytest.approx(minilm.cosines(LINES).numpy(), abs=1e-5)
    minilm.module.encoder.layer[2].attention.output.dense.weight.data.zero_()
    assert after == pytest.approx(minilm.cosines(LINES).numpy(), abs=1e-5)
    assert np.abs(before - after).max() > 1e-3
    (table,) = (frame.value for frame in page.dataframe)
    assert list(table["text"]) == LINES.splitlines()
    assert ((table["cosine before to after"] < 1 - 1e-4) & (table["cosine before to after"] > 0)).all()


def test_one_sentence_has_no_table_of_likeness() -> None:
    page = open_page(REAL, real_view="effects", text="The animal was tired", muted="1.1")
    assert not figures(page)
    assert "Write several lines" in said(page)
