"""From what a person typed to a module: names, guesses of constructor arguments, and refusals that say what to type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mha_core.doctor.process.guesses import Wishes, fitting
from mha_core.doctor.process.load import Loaded, build, find, parse_target
from mha_core.errors import MhaError

HEAD = "import torch\nfrom torch import nn\nfrom dataclasses import dataclass\n"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(code: str, name: str = "layers.py") -> Path:
        path = tmp_path / name
        path.write_text(HEAD + code, encoding="utf-8")
        return path

    return written


def load(text: str, given: Mapping[str, Any] = {}, **wishes: Any) -> Loaded:
    target = parse_target(text)
    return build(find(target), target, Wishes(**wishes), given)


def recorder(parameters: str, class_name: str = "Attention") -> str:
    """A class that keeps the arguments its constructor got."""
    keep = "dict((k, v) for k, v in locals().items() if k not in ('self', '__class__'))"
    return f"class {class_name}(nn.Module):\n    def __init__(self, {parameters}):\n        got = {keep}\n" + (
        "        super().__init__(); self.got = got\n"
    )


@pytest.mark.parametrize(
    "parameters",
    [
        "embed_dim, num_heads",
        "d_model, n_heads, dropout",
        "hidden_size, num_attention_heads",
        "n_embd, n_head, block_size",
        "dim, heads",
        "embed_size, heads",
        "h, d_model",
        "num_hiddens, num_heads, dropout",
        "model_dim, nhead, max_seq_len, device",
        "channels, n_head, bias",
        "width, k",
        "a, b",
    ],
)
def test_sizes_by_any_usual_name(write: Write, parameters: str) -> None:
    got = load(f"{write(recorder(parameters))}:Attention").module.got
    sizes = {value for value in got.values() if isinstance(value, int) and value not in (64, False)}
    assert len(sizes) == 2
    width, heads = max(sizes), min(sizes)
    assert width % heads == 0
    assert heads > 1
    assert width // heads not in (width, heads)  # a swapped axis must be seen


def test_what_is_said_of_a_guess(write: Write) -> None:
    path = write(recorder("d_model, num_heads, dropout=0.25"))
    loaded = load(f"{path}:Attention", {"num_heads": 5})
    assert loaded.module.got == {"d_model": 40, "num_heads": 5, "dropout": 0.25}
    assert loaded.constructor == "Attention(num_heads=5, d_model=40); d_model guessed"


def test_own_defaults_stay(write: Write) -> None:
    loaded = load(f"{write(recorder('d_model=14, num_heads=2, window=3'))}:Attention")
    assert loaded.module.got == {"d_model": 14, "num_heads": 2, "window": 3}
    assert "its own defaults" in loaded.constructor


def test_a_guess_fits_the_defaults_beside_it(write: Write) -> None:
    assert load(f"{write(recorder('dim, num_heads=7'))}:Attention").module.got["dim"] % 7 == 0
    grouped = load(f"{write(recorder('dim, n_heads, n_kv_heads'))}:Attention").module.got
    assert grouped["n_heads"] % grouped["n_kv_heads"] == 0
    assert 1 < grouped["n_kv_heads"] < grouped["n_heads"]
    tied = load(f"{write(recorder('dim, heads, dim_head=5'))}:Attention").module.got
    assert tied["dim"] == tied["heads"] * 5


def test_sizes_that_do_not_fit_are_given_as_they_are(write: Write) -> None:
    given = {"d_model": 10, "n_heads": 3}
    assert load(f"{write(recorder('d_model, n_heads, dropout'))}:Attention", given).module.got == given | {
        "dropout": 0.1
    }


def test_sizes_are_tried_until_the_constructor_takes_them(write: Write) -> None:
    picky = recorder("d_model, n_heads") + "        if d_model % 64: raise ValueError('a multiple of 64, please')\n"
    assert load(f"{write(picky)}:Attention").module.got["d_model"] % 64 == 0


def test_what_was_declared_reaches_arguments_of_that_meaning(write: Write) -> None:
    path = write(recorder("embed_dim=512, num_heads=8, causal=False, batch_first=False, kdim=None"))
    got = load(f"{path}:Attention", embed_dim=21, num_heads=3, causal=True, batch_first=True).module.got
    assert got == {"embed_dim": 21, "num_heads": 3, "causal": True, "batch_first": True, "kdim": None}


def test_a_config_of_the_file_keeps_its_defaults(write: Write) -> None:
    config = "@dataclass\nclass GPTConfig:\n    n_embd: int\n    n_head: int = 5\n    bias: bool = True\n"
    got = load(f"{write(config + recorder('config: GPTConfig'))}:Attention").module.got["config"]
    assert type(got).__name__ == "GPTConfig"
    assert (got.n_head, got.bias) == (5, True)
    assert got.n_embd % 5 == 0
    given = load(f"{write(config + recorder('config'))}:Attention", {"config": {"n_embd": 10, "n_head": 2}})
    assert (given.module.got["config"].n_embd, given.module.got["config"].n_head) == (10, 2)


def test_a_stand_in_config_answers_what_is_read_and_not_what_is_asked_for(write: Write) -> None:
    body = (
        "class Attention(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n"
        "        self.read = (config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob)\n"
        "        self.asked = (getattr(config, 'use_bias', 'mine'), hasattr(config, 'num_kv_heads'))\n"
    )
    module = load(f"{write(body)}:Attention").module
    assert module.read == (24, 3, 0.1)
    assert module.asked == ("mine", False)
    by_item = body.replace("config.hidden_size", "config['emb_dim']").replace("getattr(config,", "config.get(")
    module = load(f"{write(by_item)}:Attention").module
    assert (module.read[0], module.asked[0]) == (24, "mine")


def test_arguments_behind_keyword_dictionaries(write: Write) -> None:
    inherited = recorder("embed_dim, num_heads", "Base") + (
        "class Attention(Base):\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
    )
    assert load(f"{write(inherited)}:Attention").module.got == {"embed_dim": 24, "num_heads": 3}
    taken = "class Attention(nn.Module):\n    def __init__(self, **kw):\n        super().__init__()\n"
    taken += "        self.sizes = kw['d_model'], kw['n_heads']\n"
    assert load(f"{write(taken)}:Attention").module.sizes == (24, 3)


def test_objects_factories_and_functions_of_tensors(write: Write) -> None:
    path = write(
        "layer = nn.Linear(3, 3)\n"
        "def make(dim, heads):\n    return nn.MultiheadAttention(dim, heads)\n"
        "def attend(query, key, value, mask=None):\n    return (query @ key.mT).softmax(-1) @ value\n"
        "class Plain:\n    def __init__(self, dim):\n        self.dim = dim\n    def __call__(self, x):\n"
        "        return x + 1\n"
    )
    assert isinstance(load(f"{path}:layer").module, nn.Linear)
    made = load(f"{path}:make").module
    assert isinstance(made, nn.MultiheadAttention)
    assert (made.embed_dim, made.num_heads) == (24, 3)
    attend = load(f"{path}:attend").module
    torch.testing.assert_close(
        attend(torch.zeros(1, 2, 3), torch.ones(1, 5, 3), torch.ones(1, 5, 4)), torch.ones(1, 2, 4)
    )
    assert load(f"{path}:Plain").module(1) == 2


def test_library_classes() -> None:
    given = {"embed_dim": 26, "num_heads": 2}
    for text in ("torch.nn:MultiheadAttention", "torch.nn.MultiheadAttention"):
        module = load(text, given).module
        assert isinstance(module, nn.MultiheadAttention)
        assert module.head_dim == 13


def test_a_file_alone(write: Write) -> None:
    head = recorder("dim", "Head") + recorder("dim", "FeedForward")
    attention = "class MultiHeadAttention(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    assert type(load(str(write(head + attention))).module).__name__ == "MultiHeadAttention"
    part = attention.replace("MultiHeadAttention", "DotAttention")
    whole = attention + "        self.inner = DotAttention(dim)\n"
    assert type(load(str(write(part + whole))).module).__name__ == "MultiHeadAttention"
    with pytest.raises(MhaError, match="several classes: DotAttention, MultiHeadAttention") as raised:
        load(str(write(part + attention)))
    assert "layers.py:MultiHeadAttention" in str(raised.value)


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("1 / 0\n", "A", r"cannot be imported: ZeroDivisionError.*layers.py:4: 1 / 0"),
        ("def f(:\n", "A", r"not valid Python.*layers.py:4"),
        ("import no_such_thing_at_all\n", "A", r"ModuleNotFoundError.*no_such_thing_at_all.*layers.py:4"),
        ("import sys\nsys.exit(5)\n", "A", r"ends the process.*layers.py:5.*__main__"),
        (recorder("dim", "SelfAttention"), "SelfAtention", r"no 'SelfAtention'.*Try .*layers.py:SelfAttention"),
        (
            recorder("dim, heads, gizmo"),
            "Attention",
            r"needs dim, heads, gizmo.*'gizmo' cannot be guessed.*--kwargs '.*\"gizmo\": null",
        ),
        (
            recorder("dim") + "        raise ValueError('never')\n",
            "Attention",
            r"ValueError: never.*layers.py:8.*--kwargs",
        ),
        (
            "class Attention(nn.Module):\n    def __init__(self, cfg):\n        cfg.gizmo\n",
            "Attention",
            r"reads 'gizmo'.*cfg",
        ),
        ("Attention = 3\n", "Attention", "type int"),
        ("def make(dim):\n    return dim\n", "make", "type int"),
    ],
)
def test_refusals_say_the_line_or_what_to_type(write: Write, code: str, name: str, words: str) -> None:
    with pytest.raises(MhaError, match=words) as raised:
        load(f"{write(code)}:{name}")
    assert "\n" not in str(raised.value)


def test_the_line_that_is_offered_works(write: Write) -> None:
    path = write(recorder("dim, heads, gizmo: int"))
    with pytest.raises(MhaError) as raised:
        load(f"{path}:Attention")
    line = raised.value.try_[0].text.removeprefix("--kwargs '").removesuffix("'")
    assert load(f"{path}:Attention", json.loads(line)).module.got["gizmo"] == 1


def test_bad_names_of_arguments_and_files(write: Write, tmp_path: Path) -> None:
    path = write(recorder("dim, num_heads"))
    with pytest.raises(MhaError, match=r"no argument 'num_head'.*Try num_heads"):
        load(f"{path}:Attention", {"num_head": 2})
    with pytest.raises(MhaError, match=r"does not exist. Try .*layers.py"):
        load(f"{tmp_path / 'layer.py'}:Attention")
    with pytest.raises(MhaError, match="neither a file nor a module"):
        parse_target("what is this?")


def test_a_file_that_hides_a_loaded_module_and_one_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text(HEAD + recorder("dim"), encoding="utf-8")
    assert load(f"{tmp_path / 'random.py'}:Attention").module.got == {"dim": 24}
    package = tmp_path / "pack_of_layers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("WIDTH = 34\n")
    code = "from .sizes import WIDTH\nclass Attention(nn.Module):\n    width = WIDTH\n"
    (package / "layers.py").write_text(HEAD + code, encoding="utf-8")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert load(f"{package / 'layers.py'}:Attention").module.width == 34


@pytest.mark.parametrize("fixed", [{}, {"embed_dim": 35}, {"num_heads": 4}, {"head_dim": 7}, {"num_kv_heads": 3}])
@pytest.mark.parametrize("grouped", [False, True])
def test_fitting_sizes_fit(fixed: dict[str, int], grouped: bool) -> None:
    found = list(fitting(fixed, grouped=grouped))
    assert found
    for sizes in found:
        assert sizes.num_heads * sizes.head_dim == sizes.embed_dim
        assert sizes.num_heads % sizes.num_kv_heads == 0
        assert all(getattr(sizes, name) == value for name, value in fixed.items())
