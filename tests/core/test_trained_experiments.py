"""Experiments on a layer of a trained model or of a checkpoint: written, read back, broken links, and their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from mha_core import AttentionConfig, Experiment, InitSpec, MaskSpec, MhaError, TextSource
from mha_core.experiment import run
from mha_core.fields import DEFAULTS, FIELDS
from mha_core.masks import MASKS
from mha_core.sources.checkpoints.store import keep
from mha_core.sources.models import loading as model_loading
from mha_core.sources.models import weight_packages
from mha_core.sources.trained import FREE, CheckpointSource, PretrainedSource
from tests.core.small_models import MAKERS, TEXT, save

WEIRD = ["", "none", "~x", "a&b=c;d%20+#?", "👩‍👩‍👧‍👦", "x\ny", "é" * 300]
texts = st.sampled_from(WEIRD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
HEADS = 7  # of the checkpoint's layer, which does not say so


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def folders(root: Path) -> dict[str, str]:
    return {family: str(save(MAKERS[family], root / family, seed=3)) for family in ("gpt2", "llama", "t5")}


@pytest.fixture(scope="module")
def module() -> nn.MultiheadAttention:
    """E = 21, which neither its names nor its shapes cut into heads."""
    torch.manual_seed(1)
    module = nn.MultiheadAttention(21, HEADS, batch_first=True).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


@pytest.fixture(scope="module")
def checkpoint(root: Path, module: nn.MultiheadAttention) -> str:
    """Two layers, the second with every value doubled."""
    state = module.state_dict()
    both = {f"layers.{n}.self_attn.{name}": tensor * (n + 1) for n in (0, 1) for name, tensor in state.items()}
    save_file(both, root / "two.safetensors")
    return str(root / "two.safetensors")


def draw_rest(draw: st.DrawFn) -> dict[str, object]:
    """Everything that is free with any source."""

    def choice(name: str) -> str:
        return draw(st.sampled_from(FIELDS[name].choices))

    kernel = choice("kernel")
    fields = {name: choice(name) for name in FREE if name not in ("kernel", "dropout")}
    fields |= {"kernel": kernel, "dropout": 0.0 if kernel == "sdpa" else draw(st.sampled_from((0.0, 0.3)))}
    masks = [kind for kind in MASKS if kind != "custom"]
    fields |= {"mask": tuple(draw(st.lists(st.sampled_from(masks)))), "window": draw(st.integers(0, 9))}
    fields |= {"fill": "zero" if kernel == "sdpa" else choice("fill"), "init": choice("init"), "dtype": choice("dtype")}
    fields |= {"scale": draw(st.none() | st.floats(-9, 9)), "seed": draw(st.integers(0, 2**63 - 1))}
    return fields


def check_round_trips(experiment: Experiment) -> None:
    fields, link = experiment.to_fields(), experiment.to_query()
    assert Experiment.from_fields(fields) == experiment
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert Experiment.from_query(link) == (experiment, [])
    assert Experiment.from_query(dict(parse_qsl(link, keep_blank_values=True))) == (experiment, [])
    assert hash(Experiment.from_json(experiment.to_json())) == hash(experiment)
    assert set(dict(parse_qsl(link, keep_blank_values=True))) == {n for n, v in fields.items() if v != DEFAULTS[n]}
    assert list(json.loads(experiment.to_json())) == list(fields)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_pretrained_experiments_are_read_back_exactly(folders: dict[str, str], data: st.DataObject) -> None:
    muted = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda pair: f"{pair[0]}.{pair[1]}"))
    fields = draw_rest(data.draw) | {
        "source": "pretrained",
        "model": folders[data.draw(st.sampled_from(sorted(folders)))],
        "layer": data.draw(st.integers(0, 1)),
        "text": data.draw(texts),
        "memory_text": data.draw(st.none() | texts),
        "own_mask": data.draw(st.booleans()),
        "replaced": tuple(data.draw(st.lists(st.sampled_from(FIELDS["replaced"].choices)))),
        "muted": tuple(data.draw(muted)),
        "reach": data.draw(st.sampled_from(FIELDS["reach"].choices)),
    }
    experiment = Experiment.from_fields(fields)
    check_round_trips(experiment)
    source = experiment.source
    assert isinstance(source, PretrainedSource)
    assert (source.model, source.layer, source.text) == (fields["model"], fields["layer"], fields["text"])
    assert set(source.muted) == set(fields["muted"])
    sizes = {"embed_dim", "num_heads", "num_kv_heads", "head_size", "bias", "kdim", "vdim", "rope_theta", "positions"}
    assert not sizes & set(experiment.to_fields()), "what the model fixes is not a choice"


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_checkpoint_experiments_are_read_back_exactly(checkpoint: str, data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from((1, 3, 7)))
    fields = draw_rest(data.draw) | {
        "source": "checkpoint",
        "checkpoint": checkpoint,
        "checkpoint_layer": data.draw(st.integers(0, 1)),
        "replaced": tuple(data.draw(st.lists(st.sampled_from(FIELDS["replaced"].choices)))),
        "text": data.draw(texts),
        "memory_text": data.draw(st.none() | texts),
        "tokenizer": data.draw(st.sampled_from(("word", "char"))),
        "num_heads": heads,
        "positions": data.draw(st.sampled_from(("none", "sinusoidal"))),
    }
    experiment = Experiment.from_fields(fields)
    check_round_trips(experiment)
    assert experiment.attention.num_heads == heads
    assert (experiment.attention.embed_dim, experiment.attention.head_dim) == (21, 21 // heads)


# --- a layer of a checkpoint against the module it is from -----------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_a_layer_of_a_checkpoint_is_the_module(
    layer: int, projection: str, checkpoint: str, module: nn.MultiheadAttention
) -> None:
    source = CheckpointSource(checkpoint, layer, HEADS, words=TextSource(TEXT))
    chosen = AttentionConfig(projection=projection)
    answer = run(Experiment(source=source, attention=chosen, mask=MaskSpec(("padding",))))
    theirs = nn.MultiheadAttention(21, HEADS, batch_first=True).eval()
    theirs.load_state_dict({name: tensor * (layer + 1) for name, tensor in module.state_dict().items()})
    filler = torch.tensor([[place >= length for place in range(7)] for length in (7, 5, 1)])
    query = answer.inputs.query
    with torch.no_grad():
        output, weights = theirs(query, query, query, key_padding_mask=filler, average_attn_weights=False)
    torch.testing.assert_close(answer.weights, weights, rtol=0, atol=1e-5)
    torch.testing.assert_close(answer.output, output, rtol=0, atol=1e-4)


def test_an_uploaded_file_is_the_same_by_its_key(checkpoint: str) -> None:
    key = keep("mine.safetensors", Path(checkpoint).read_bytes())
    uploaded, there = (run(Experiment(source=CheckpointSource(name, 1, HEADS))).output for name in (key, checkpoint))
    assert torch.equal(uploaded, there)


def test_replaced_matrices_of_a_checkpoint(checkpoint: str, module: nn.MultiheadAttention) -> None:
    """With a value matrix and bias of zeros nothing is read, and only the output's bias is left."""
    source = CheckpointSource(checkpoint, 0, HEADS, replaced=("v",), words=TextSource(TEXT))
    answer = run(Experiment(source=source, init=InitSpec("zeros")))
    assert not answer.context.any()
    torch.testing.assert_close(answer.output, module.out_proj.bias.detach().expand(3, 7, 21))
    assert torch.equal(answer.weights, run(Experiment(source=replace(source, replaced=()))).weights)


def test_heads_that_follow_are_those_of_the_file(root: Path, folders: dict[str, str]) -> None:
    """The config beside the weights says 6 heads and 2 key/value heads of width 10."""
    for wanted in (6, 8):
        source = CheckpointSource(folders["llama"], 1, wanted, words=TextSource("the cat sat"))
        config = Experiment(source=source).attention
        assert (config.embed_dim, config.num_heads, config.kv_heads, config.head_dim) == (42, 6, 2, 10)
        assert not config.bias
    turned = Experiment(source=source, attention=AttentionConfig(rope_theta=123.0))
    assert (turned.attention.rope_theta, turned.positions) == (123.0, "rotary")
    assert run(turned).weights.shape == (1, 6, 3, 3)


def refusal(checkpoint: str, layer: int = 0, heads: int = HEADS) -> MhaError:
    with pytest.raises(MhaError) as caught:
        Experiment(source=CheckpointSource(checkpoint, layer, heads))
    assert "\n" not in caught.value.problem
    return caught.value


def test_heads_that_do_not_fit(checkpoint: str) -> None:
    error = refusal(checkpoint, heads=8)
    assert error.field == "num_heads"
    assert {("num_heads", 3), ("num_heads", 7)} & {change for suggestion in error.try_ for change in suggestion.changes}


def test_a_layer_that_the_file_does_not_have(checkpoint: str) -> None:
    error = refusal(checkpoint, 2)
    assert (error.field, "has 2 attention layers" in error.problem) == ("checkpoint_layer", True)


NO_FILES = ["", " ", ".", "/", "0123456789abcdef", "nothing.safetensors", "x" * 5000, "a\x00b", "\ud800", "~"]


@pytest.mark.parametrize("name", NO_FILES, ids=ascii)
def test_names_that_are_no_checkpoints(name: str, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    empty = root / "empty"
    empty.mkdir(exist_ok=True)
    monkeypatch.chdir(root if not name.strip() else empty)
    assert refusal(name).field == "checkpoint"


def test_a_file_without_attention(root: Path) -> None:
    save_file({"weight": torch.ones(3, 2)}, root / "other.safetensors")
    assert refusal(str(root / "other.safetensors")).field == "checkpoint_layer"


def test_a_file_that_changed_is_read_again(root: Path, module: nn.MultiheadAttention) -> None:
    path, source = root / "changing.safetensors", CheckpointSource(str(root / "changing.safetensors"), 0, HEADS)
    outputs = []
    for factor in (1, 2):
        save_file({f"a.{name}": tensor * factor for name, tensor in module.state_dict().items()}, path)
        outputs.append(run(Experiment(source=source)).output)
    assert not torch.allclose(*outputs)


# --- broken links ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_default_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a server where minilm, which a damaged link falls back to, is not installed and the hub is out of reach."""
    weight_packages.find_weights.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    monkeypatch.setattr(model_loading, "_loaded", type(model_loading._loaded)())
    monkeypatch.setattr(model_loading, "_hub_bytes", lambda name: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    yield
    weight_packages.find_weights.cache_clear()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("muted", "abc", "muted is abc; it must be heads"),
        ("muted", "0.1,1", "muted is 1; it must be heads"),
        ("muted", "99" * 400 + ".1", "it must be heads"),
        ("layer", "-1", "layer is -1"),
        ("layer", "7", "layer is 7; it must be from 0 to 1"),
        ("layer", "", "layer is ''"),
        ("replaced", "q,z", "replaced is z"),
        ("reach", "everything", "reach is everything"),
        ("own_mask", "maybe", "own_mask is maybe"),
        ("scale", "much", "scale is much"),
    ],
)
def test_a_bad_value_costs_only_itself(name: str, text: str, told: str, folders: dict[str, str]) -> None:
    good = {"source": "pretrained", "model": folders["gpt2"], "text": "Hello", "seed": "5"}
    experiment, problems = Experiment.from_query(urlencode(good | {name: text}))
    assert experiment == Experiment(source=PretrainedSource(folders["gpt2"], 0, "Hello"), seed=5)
    assert len(problems) == 1
    assert told in problems[0]


@pytest.mark.usefixtures("no_default_model")
@pytest.mark.parametrize(
    "link",
    [
        "source=pretrained&model=",
        "source=pretrained&model=%00",
        "source=pretrained",
        "source=pretrained&model=minilm&layer=3&muted=1.1",
        "source=pretrained&model=/nowhere/at/all&replaced=q",
        "source=pretrained&model=~x",
        "source=checkpoint",
        "source=checkpoint&checkpoint=",
        "source=checkpoint&checkpoint=0123456789abcdef&checkpoint_layer=3",
        "source=checkpoint&checkpoint=/nowhere&num_heads=7",
        "source=checkpoint&checkpoint=/etc/passwd",
        "source=checkpoint&checkpoint_layer=-1",
    ],
)
def test_a_source_that_is_not_there_is_told_and_left(link: str) -> None:
    experiment, problems = Experiment.from_query(link + "&text=Hello&window=4")
    assert isinstance(experiment.source, TextSource)
    assert experiment.source.text == "Hello"
    assert experiment.mask.window == 4
    assert problems
    assert all("default" in problem and len(problem) < 600 for problem in problems)


@pytest.mark.parametrize("value", [5, True, None, [], ["0.1", 3], {"a": 1}, "0.1", ["x"]], ids=repr)
@pytest.mark.parametrize("name", ["model", "layer", "own_mask", "replaced", "muted", "reach", "text", "memory_text"])
def test_values_of_a_wrong_kind(name: str, value: object, folders: dict[str, str]) -> None:
    loaded = {"source": "pretrained", "model": folders["gpt2"]} | {name: value}
    if name == "model" and isinstance(value, str):
        return
    try:
        experiment = Experiment.from_json(json.dumps(loaded))
    except MhaError as error:
        blamed = error.field
    else:
        blamed = name
        assert Experiment.from_json(experiment.to_json()) == experiment
        assert Experiment.from_query(experiment.to_query()) == (experiment, [])
    assert blamed == name
