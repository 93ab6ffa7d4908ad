"""The checkpoint inspector as a part of a page: what an upload shows, what it keeps quiet about, and where it leads."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from streamlit.testing.v1 import AppTest

from mha_core.config import AttentionConfig
from mha_core.layouts import pack_interleaved
from mha_core.sources.checkpoints import store as checkpoint_store
from tests.lenses.checkpoints import StateDict, bert, torch_layer, trained_bert, write
from tests.lenses.trained_layers import minilm
from tests.ui.page import TIMEOUT_S, figures, fine, link, press, set_widget, texts, whole
from ui import checkpoint

PAGE = """from ui import checkpoint, frame
frame.begin("Real models", "what do trained heads do?")
frame.part("checkpoint", checkpoint.section)
"""
BERT_HEADS = json.dumps({"model_type": "bert", "num_attention_heads": 5}).encode()


def drop(
    folder: Path, state: StateDict | bytes, name: str = "model.safetensors", config: bytes | None = None
) -> AppTest:
    """Open a page with the section and give it a file, and perhaps a config."""
    script = folder / "page.py"
    script.write_text(PAGE)
    page = fine(AppTest.from_file(str(script), default_timeout=TIMEOUT_S).run())
    content = state if isinstance(state, bytes) else write(folder, state, name).read_bytes()
    file, beside = page.get("file_uploader")
    file.set_value((name, content, "application/octet-stream"))
    if config is not None:
        beside.set_value(("config.json", config, "application/json"))
    return fine(page.run())


def said(page: AppTest) -> str:
    """Everything the page says, its successes too, without Markdown's escapes."""
    return (texts(page) + "\n".join(element.value for element in page.success)).replace("\\", "")


def table(page: AppTest, column: str) -> pd.DataFrame:
    """The table of the page whose first column is so named."""
    return next(frame.value for frame in page.dataframe if frame.value.columns[0] == column)


def test_nothing_is_shown_before_an_upload(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(PAGE)
    page = fine(AppTest.from_file(str(script), default_timeout=TIMEOUT_S).run())
    assert "Nothing in the file is run" in said(page)
    assert not page.dataframe


def test_layers_and_what_follows(tmp_path: Path) -> None:
    page = drop(tmp_path, bert(layers=3))
    rows = table(page, "layer")
    assert list(rows["E"]) == [35] * 3
    assert rows["H"].str.startswith("open: 1, 5, 7, 35").all()
    assert "model.safetensors · 12 tensors" in said(page)
    assert "looks like normal with std 0.02" in said(page)
    assert "no numbers per head" in said(page)
    assert page.button(key="checkpoint_run").disabled
    (spectra,) = figures(page)
    assert [trace["name"] for trace in spectra["data"]] == ["Wq", "Wk", "Wv", "Wout"]


def test_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    state = bert(seed=5)
    page = drop(tmp_path, state, config=BERT_HEADS)
    assert list(table(page, "layer")["H"]) == ["5", "5"]
    rows = table(page, "matrix").set_index("tensor")
    heat, spectra = figures(page)
    for at, (name, matrix) in enumerate(list(state.items())[:4]):
        singular = torch.linalg.svdvals(matrix.double())
        assert rows.loc[name, "std"] == pytest.approx(matrix.double().std(correction=0).item(), rel=1e-9)
        assert rows.loc[name, "largest s"] == pytest.approx(singular[0].item(), rel=1e-9)
        parts = matrix.split(7, dim=1 if "output" in name else 0)
        assert heat["data"][0]["z"][at] == pytest.approx([part.norm().item() for part in parts], rel=1e-6)
        wanted = (singular / singular[0]).numpy()
        assert spectra["data"][at]["y"][:-1] == pytest.approx(wanted[:-1], rel=1e-4)
    page = whole(set_widget(page, "seen_measure", "std"))
    stds = [part.std(correction=0).item() for part in state[rows.index[0]].split(7)]
    assert figures(page)[0]["data"][0]["z"][0] == pytest.approx(stds, rel=1e-5)


def test_another_layer_and_a_chosen_number_of_heads(tmp_path: Path) -> None:
    state = bert()
    page = whole(set_widget(drop(tmp_path, state), "seen_layer", 1))
    page = whole(set_widget(page, "seen_heads", 7))
    assert table(page, "matrix")["tensor"].str.contains("layer.1.").all()
    assert len(figures(page)[0]["data"][0]["x"]) == 7
    assert not page.button(key="checkpoint_run").disabled


def test_problems_and_notes_are_told_apart(tmp_path: Path) -> None:
    state = bert()
    state["encoder.layer.0.attention.self.key.weight"][3, 3] = math.nan
    state["encoder.layer.0.attention.output.dense.weight"].zero_()
    page = drop(tmp_path, state, config=BERT_HEADS)
    assert "1 NaN and 0 infinite numbers, in head 0" in "".join(warning.value for warning in page.warning)
    assert "by design" in "".join(info.value for info in page.info)
    assert np.isfinite(figures(page)[0]["data"][0]["z"]).all()
    page = drop(tmp_path, bert(), config=BERT_HEADS)
    assert "Nothing odd in this layer." in said(page)


def test_every_layer_can_be_checked(tmp_path: Path) -> None:
    state = bert(layers=3)
    state["encoder.layer.2.attention.self.value.weight"].zero_()
    page = drop(tmp_path, state, config=BERT_HEADS)
    assert "v is all zeros" not in said(page)
    page = press(page, "checkpoint_all")
    for _ in range(100):
        if "v is all zeros" in said(page):
            break
        page = fine(page.run())
    assert "encoder.layer.2.attention.self.value.weight" in said(page)


def test_fused_evidence_is_shown(tmp_path: Path) -> None:
    layer = minilm()[2]
    packed = pack_interleaved(layer["q"], layer["k"], layer["v"], AttentionConfig(384, 12))
    start = "gpt_neox.layers.0.attention."
    state = {f"{start}query_key_value.weight": packed, f"{start}dense.weight": layer["out"]}
    config = json.dumps({"model_type": "gpt_neox", "num_attention_heads": 12}).encode()
    page = drop(tmp_path, state, config=config)
    assert "Interleaved (per head)" in said(page)
    rows = table(page, "packing")
    assert rows["packing"].iloc[0] == "interleaved"
    assert rows["total"].is_monotonic_decreasing
    assert "trained, most likely" in said(page)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "model.safetensors"),
        (b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.", "model.safetensors"),
        ((2**60).to_bytes(8, "little") + b"{}", "model.safetensors"),
    ],
)
def test_a_hostile_file_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    page = drop(tmp_path, content)
    (error,) = page.error
    assert words in error.value.replace("\\", "")
    assert "\n" not in error.value
    assert not page.dataframe


@pytest.mark.parametrize("config", [b"[1]", b"\xff", b"{" * 100_000, b"nonsense"])
def test_a_config_that_is_none_is_one_sentence(tmp_path: Path, config: bytes) -> None:
    (error,) = drop(tmp_path, bert(), config=config).error
    assert "this config is not an object of JSON" in error.value


def test_names_are_never_markdown(tmp_path: Path) -> None:
    evil = "![x](http://example.org/x)<b>*h*"
    state = {f"{evil}.{name}": value for name, value in bert(layers=1).items()}
    state[f"{evil}.encoder.layer.0.attention.self.query.weight"][0, 0] = math.nan
    page = drop(tmp_path, state)
    assert evil in said(page)
    assert evil not in texts(page)


def test_the_layer_goes_to_page_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    went: list[str] = []
    monkeypatch.setattr(checkpoint.st, "switch_page", went.append)
    page = whole(set_widget(drop(tmp_path, torch_layer(), "layer.pt"), "seen_heads", 5))
    page = whole(press(page, "checkpoint_run"))
    assert went == ["pages/1_Attention.py"]
    query = link(page)
    assert set(query) == {"source", "checkpoint", "num_heads", "seen_heads"}  # no other choice is touched
    assert (query["source"], query["num_heads"]) == ("checkpoint", "5")
    assert checkpoint_store.kept(query["checkpoint"]).name == "layer.pt"


def test_a_trained_model_is_called_trained(tmp_path: Path) -> None:
    config = json.dumps({"model_type": "bert", "num_attention_heads": 12}).encode()
    page = drop(tmp_path, trained_bert(), config=config)
    assert said(page).count("trained, most likely") == 4
    assert "Nothing odd in this layer." in said(page)
