"""Every page with a layer of a trained model or of a checkpoint as the experiment, and with one that cannot be had."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest

from mha_core.sources.checkpoints import store as checkpoint_store
from mha_core.sources.models import loading as model_loading
from tests.core.small_models import MAKERS, save
from tests.lenses.checkpoints import bert, write
from tests.ui.page import ATTENTION, ROOT, grid, open_page, set_widget, texts, whole
from ui.laboratory import SECTIONS

SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "pages").glob("*.py"))
FOLLOWING = [script for script in SCRIPTS if script != "pages/8_Doctor.py"]  # the Doctor asks for no experiment
PLACES = [(script, {}) for script in SCRIPTS]
PLACES += [("pages/3_Gradients.py", {"lab": bench}) for bench in SECTIONS]
PLACES += [(ATTENTION, {"panel": panel}) for panel in ("bars", "lines", "statistics", "similarity")]
PLACES += [("pages/6_Real_models.py", {"real_view": view}) for view in ("effects", "checkpoint")]
IDS = [f"{script[6:-3]}-{'-'.join(query.values())}" for script, query in PLACES]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The second layer of a small decoder, with an edit."""
    folder = save(MAKERS["llama"], tmp_path_factory.mktemp("models") / "llama", with_tokenizer=True)
    text = "the cat sat on the mat\nrain today"
    return {"source": "pretrained", "model": str(folder), "layer": "1", "text": text, "muted": "1.2"}


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The second layer of an uploaded file."""
    path = write(tmp_path_factory.mktemp("uploads"), bert())
    key = checkpoint_store.keep(path.name, path.read_bytes())
    return {"source": "checkpoint", "checkpoint": key, "checkpoint_layer": "1", "num_heads": "5"}


@pytest.mark.parametrize(("script", "query"), PLACES, ids=IDS)
def test_a_trained_layer(trained: dict[str, str], script: str, query: dict[str, str]) -> None:
    assert not open_page(script, **trained, **query).error


@pytest.mark.parametrize(("script", "query"), PLACES, ids=IDS)
def test_a_layer_of_a_checkpoint(uploaded: dict[str, str], script: str, query: dict[str, str]) -> None:
    assert not open_page(script, **uploaded, **query).error


@pytest.mark.parametrize("script", FOLLOWING)
def test_a_model_that_cannot_be_had(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, the hub asked once, and the page goes on with the experiment before."""
    asked = []

    def unreachable(name: str, **_: object) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.model_info", unreachable)
    monkeypatch.setattr(model_loading, "_refused", OrderedDict())
    page = open_page(script, source="pretrained", model="nonsense")
    assert len(asked) == 1
    assert "nonsense" in "".join(error.value for error in page.error)
    if script == ATTENTION:
        assert grid(page).header["heads"] == 8


@pytest.mark.parametrize("checkpoint", ["nonsense", "", "0123456789abcdef", "\x00", "pages"])
@pytest.mark.parametrize("script", [script for script in FOLLOWING if script != "pages/6_Real_models.py"])
def test_a_checkpoint_that_is_none(script: str, checkpoint: str) -> None:
    page = open_page(script, source="checkpoint", checkpoint=checkpoint)
    (error,) = page.error
    assert "\n" not in error.value


def test_a_checkpoint_without_the_number_of_heads_asks_for_one(uploaded: dict[str, str]) -> None:
    page = open_page(ATTENTION, **uploaded | {"num_heads": "8"})
    assert "35" in "".join(error.value for error in page.error)
    page = whole(set_widget(page, "num_heads", 7))
    assert not page.error
    assert grid(page).header["heads"] == 7


def test_the_sidebar_offers_what_belongs_to_the_source(trained: dict[str, str], uploaded: dict[str, str]) -> None:
    shown = {}
    for query in (trained, uploaded):
        page = open_page(ATTENTION, **query)
        kinds = (page.number_input, page.slider, page.selectbox, page.toggle, page.button_group, page.multiselect)
        shown[query["source"]] = {str(widget.key).removeprefix("field_") for group in kinds for widget in group}
    own = {"model", "layer", "own_mask", "reach", "replaced", "muted"}
    assert own <= shown["pretrained"]
    assert not own & shown["checkpoint"]
    assert {"checkpoint_layer", "num_heads", "tokenizer"} <= shown["checkpoint"]
    assert not {"embed_dim", "head_size", "kdim", "bias", "init_targets"} & (shown["pretrained"] | shown["checkpoint"])
    page = open_page(ATTENTION, source="checkpoint")
    assert "Upload a checkpoint on page Real models" in texts(page)


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 100)
    (error,) = open_page(ATTENTION, source="checkpoint", checkpoint=str(path)).error
    assert str(tmp_path) not in error.value.replace("\\", "")


def test_page_attention_names_the_layer(trained: dict[str, str], uploaded: dict[str, str]) -> None:
    assert "llama, layer 1 ·" in "".join(texts(open_page(ATTENTION, **trained))).replace("\\", "")
    found = "".join(texts(open_page(ATTENTION, **uploaded))).replace("\\", "")
    assert "encoder.layer.1.attention ·" in found


def test_the_inspector_needs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it looks at a file, the page shows the experiment that is chosen, and loads nothing."""
    monkeypatch.setattr(model_loading, "_loaded", OrderedDict())
    page = open_page("pages/6_Real_models.py", real_view="checkpoint")
    assert not page.error
    assert not model_loading._loaded
    assert page.segmented_control(key="field_source").value == "text"
