"""An experiment written as fields, JSON or a link is read back exactly, and no link, however broken, is an exception.

Experiments are generated over every field. Damaged links are held against two rules: each thing that was not used is
named in a sentence, and whatever was fine on its own is kept.
"""

from __future__ import annotations

import base64
import json
import math
import random
import zlib
from dataclasses import FrozenInstanceError
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mha_core import INIT_SCHEMES, AttentionConfig, Experiment, InitSpec, MaskSpec, MhaError, RandomSource, TextSource
from mha_core.fields import DEFAULTS, FIELDS, read_query
from mha_core.packed_text import pack_text, unpack_text

GENERATED = settings(max_examples=200, deadline=None, derandomize=True)
WEIRD = [
    "",
    "none",
    "None",
    "~",
    "~x",
    "~eJw",
    "a\nb\r\nc",
    "👩‍👩‍👧‍👦 🇨🇦",
    "a&b=c;d%20+#?",
    " ",
    "\x00",
    "[pad]",
    "é" * 300,
    "null",
]
TRAINED = ("model", "layer", "own_mask", "replaced", "muted", "reach", "checkpoint", "checkpoint_layer")

texts = st.sampled_from(WEIRD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
floats = st.floats(allow_nan=False, allow_infinity=False)
bits = st.integers(1, 6).flatmap(lambda n: st.lists(st.text("01", min_size=n, max_size=n), min_size=1, max_size=6))


def between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high) | st.sampled_from((low, high, (low + high) / 2))


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Any valid experiment."""

    def choice(name: str) -> str:
        return draw(st.sampled_from(FIELDS[name].choices))

    heads, kernel = draw(st.integers(1, 16)), choice("kernel")
    width = 2 * heads * draw(st.integers(1, 99))
    projection = choice("projection")
    widths = st.none() if projection == "fused" else st.none() | st.integers(1, 16_384)
    embeddings = choice("embeddings")
    tokenizer = choice("tokenizer")
    if embeddings != "random":  # a model's token table belongs to its tokens and its width
        tokenizer, width, heads = {"minilm": ("wordpiece", 384, 12), "smollm2": ("bpe", 576, 9)}[embeddings]
        widths = st.none() | st.just(width)
    text = TextSource(draw(texts), draw(st.none() | texts), tokenizer, embeddings)
    k_len = draw(st.none() | st.integers(1, 65_536))
    random_source = RandomSource(draw(st.integers(1, 512)), draw(st.integers(1, 65_536)), k_len, choice("distribution"))
    custom = draw(st.none() | bits.map(tuple))
    kinds = draw(st.lists(st.sampled_from([k for k in FIELDS["mask"].choices if k != "custom" or custom])))
    return Experiment(
        source=draw(st.sampled_from((text, random_source))),
        attention=AttentionConfig(
            embed_dim=width,
            num_heads=heads,
            num_kv_heads=draw(st.sampled_from([None] + [n for n in range(1, heads + 1) if heads % n == 0])),
            head_size=draw(st.none() | st.integers(1, 8_192).map(lambda half: 2 * half)),
            bias=draw(st.booleans()),
            kdim=draw(widths),
            vdim=draw(widths),
            dropout=0.0 if kernel == "sdpa" else draw(between(0, 0.99)),
            projection=projection,
            qkv_layout=choice("qkv_layout"),
            head_split=choice("head_split"),
            kernel=kernel,
            scale=draw(st.none() | between(-1e6, 1e6)),
            rope_theta=draw(st.none() | between(1, 1e9)),
        ),
        mask=MaskSpec(
            kinds=tuple(kinds),
            window=draw(st.integers(0, 65_536)),
            direction=choice("direction"),
            alignment=choice("alignment"),
            fill="zero" if kernel == "sdpa" else choice("fill"),
            custom=custom,
        ),
        init=InitSpec(
            scheme=choice("init"),
            gain=draw(between(0, 1e4)),
            std=draw(between(0, 1e3)),
            targets=tuple(draw(st.lists(st.sampled_from(FIELDS["init_targets"].choices)))),
            bias=choice("init_bias"),
            packed=projection == "fused" and draw(st.booleans()),
        ),
        positions=choice("positions"),
        dtype=choice("dtype"),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@GENERATED
@given(experiments())
def test_round_trips_are_exact(experiment: Experiment) -> None:
    assert Experiment.from_fields(experiment.to_fields()) == experiment
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert Experiment.from_query(experiment.to_query()) == (experiment, [])
    assert Experiment.from_query("?" + experiment.to_query()) == (experiment, [])
    assert Experiment.from_query(dict(parse_qsl(experiment.to_query(), keep_blank_values=True))) == (experiment, [])
    assert hash(Experiment.from_json(experiment.to_json())) == hash(experiment)


@GENERATED
@given(experiments())
def test_flat_fields_are_the_declared_ones_and_links_hold_only_differences(experiment: Experiment) -> None:
    fields = experiment.to_fields()
    of_text, of_random = {"text", "memory_text", "tokenizer", "embeddings"}, {"batch", "q_len", "k_len"}
    other = {*(of_text if fields["source"] == "random" else of_random), *TRAINED}
    assert set(FIELDS) - set(fields) - {"distribution"} == other - {"distribution"}
    assert set(fields) <= set(FIELDS)
    link = dict(parse_qsl(experiment.to_query(), keep_blank_values=True))
    assert set(link) == {name for name, value in fields.items() if value != DEFAULTS[name]}
    assert list(json.loads(experiment.to_json())) == list(fields)


@pytest.mark.parametrize("text", [*WEIRD, "🦜" * 100_000, "x" * 100_000, "\U0010ffff" * 99_999])
def test_texts_survive_a_link(text: str) -> None:
    experiment = Experiment(source=TextSource(text, memory_text=text))
    assert Experiment.from_query(experiment.to_query()) == (experiment, [])
    assert Experiment.from_json(experiment.to_json()) == experiment


def test_the_largest_custom_mask_survives_a_link() -> None:
    draw = random.Random(1)
    rows = tuple("".join(draw.choice("01") for _ in range(512)) for _ in range(512))
    experiment = Experiment(mask=MaskSpec(("custom",), custom=rows))
    assert Experiment.from_query(experiment.to_query()) == (experiment, [])


def test_the_default_experiment_has_an_empty_link() -> None:
    assert Experiment().to_query() == ""
    assert Experiment.from_query("") == (Experiment(), [])
    assert Experiment.from_fields({}) == Experiment()
    assert Experiment.from_json("{}") == Experiment()
    assert {name: v for name, v in DEFAULTS.items() if name in Experiment().to_fields()} == Experiment().to_fields()


def test_experiments_are_frozen() -> None:
    experiment = Experiment()
    for record, name in ((experiment, "seed"), (experiment.attention, "embed_dim"), (experiment.mask, "kinds")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, getattr(record, name))


def test_rotary_positions_and_theta_imply_one_another() -> None:
    assert Experiment(positions="rotary").attention.rope_theta == 10_000.0
    assert Experiment(attention=AttentionConfig(rope_theta=7.0)).positions == "rotary"
    both = Experiment(positions="sinusoidal", attention=AttentionConfig(rope_theta=7.0))
    assert (both.positions, both.attention.rope_theta) == ("sinusoidal", 7.0)


# --- broken JSON and fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "x", "[1]", "null", "3", '"a"', "{", '{"a": 1}', '{"embed_dim": NaN}', '{"scale": Infinity}', "[" * 100_000],
)
def test_text_that_is_no_experiment_is_refused(text: str) -> None:
    with pytest.raises(MhaError):
        Experiment.from_json(text)


@pytest.mark.parametrize("value", [5, 1.5, True, None, "x", [], [1], [[2]], {"a": 1}, -1, 10**40], ids=repr)
@pytest.mark.parametrize("name", FIELDS)
def test_values_of_a_wrong_kind_are_refused_or_mean_something(name: str, value: object) -> None:
    source = {"source": "random"} if FIELDS[name].name in ("batch", "q_len", "k_len", "distribution") else {}
    try:
        experiment = Experiment.from_json(json.dumps(source | {name: value}))
    except MhaError:
        return
    assert Experiment.from_json(experiment.to_json()) == experiment


# --- links ----------------------------------------------------------------------------------------------------------

BAD = [
    ("embed_dim", "0", "embed_dim is 0; it must be a whole number from 1 to 16384"),
    ("embed_dim", "-5", "embed_dim is -5"),
    ("embed_dim", "1e3", "embed_dim is 1e3; it must be a whole number"),
    ("embed_dim", "9" * 5000, "embed_dim is '999"),
    ("num_heads", "1000000", "num_heads is 1000000"),
    ("scale", "nan", "scale is nan; it must be a number from -1e+06 to 1e+06"),
    ("scale", "1e999", "scale is 1e999"),
    ("dropout", "1", "dropout is 1"),
    ("bias", "maybe", "bias is maybe; it must be true or false"),
    ("mask", "causal,diagonal", "mask is diagonal; it must be one of"),
    ("kernel", "", "kernel is ''; it must be one of"),
    ("custom_mask", "10/1", "the rows of the custom mask must be equally long"),
    ("custom_mask", "~!!!", "custom_mask is 4 characters; it must be a complete text"),
    ("text", "~x", "the packed text in the link is damaged"),
    ("text", "~" + "é" * 9, "the packed text in the link is damaged"),
    ("text", pack_text("a" * 500)[:-9], "text is"),
    ("text", "a" * 100_001, "text is 100,001 characters; it must be at most 100,000"),
    ("seed", "9223372036854775808", "seed is 9223372036854775808"),
]


@pytest.mark.parametrize(("name", "text", "sentence"), BAD)
def test_bad_values_are_named_and_replaced(name: str, text: str, sentence: str) -> None:
    values, problems = read_query({"window": "5", name: text, "init": "zeros"})
    assert values == DEFAULTS | {"window": 5, "init": "zeros"}
    assert len(problems) == 1
    assert sentence in problems[0]
    assert "the default" in problems[0]
    assert len(problems[0]) < 400, "a sentence, not the whole link"
    experiment, again = Experiment.from_query(urlencode({"window": "5", name: text, "init": "zeros"}))
    assert again == problems
    assert experiment == Experiment(mask=MaskSpec(window=5), init=InitSpec("zeros"))


def test_unknown_names_are_told_and_left_out() -> None:
    experiment, problems = Experiment.from_query({"colour": "red", "x" * 500: "1", "seed": "3"})
    assert experiment == Experiment(seed=3)
    assert problems[0] == "'colour' is not a setting of this product; it is left out."
    assert len(problems) == 2
    assert len(problems[1]) < 120


def test_zip_bombs_are_bounded() -> None:
    bomb = "~" + base64.urlsafe_b64encode(zlib.compress(b"1" * 50_000_000, 9)).decode()
    for name in ("text", "memory_text", "custom_mask"):
        with pytest.raises(MhaError, match=rf"{name} is .* characters; it must be a complete text of bounded length"):
            unpack_text(name, bomb)
        experiment, problems = Experiment.from_query({name: bomb})
        assert experiment == Experiment()
        assert len(problems) == 1


@pytest.mark.parametrize(
    ("link", "kept", "told"),
    [
        ("text=Hello&embed_dim=510", {"text": "Hello"}, "embed_dim 510 is not divisible by num_heads 8"),
        ("text=Hello&num_heads=7", {"text": "Hello"}, "embed_dim 512 is not divisible by num_heads 7"),
        ("text=Hello&mask=causal,custom", {"text": "Hello"}, "the custom mask is chosen but no matrix is given"),
        ("window=3&init_packed=true", {"window": 3}, "init_packed draws q, k and v as one matrix"),
        ("window=3&kernel=sdpa&fill=-inf", {"window": 3}, "torch's fused kernel fills hidden scores by itself"),
        ("text=Hello&projection=fused&kdim=7", {"text": "Hello"}, "one fused matrix needs one input width"),
        ("text=Hello&positions=rotary&embed_dim=8", {"text": "Hello"}, "rotary positions turn pairs of channels"),
        ("text=Hello&num_kv_heads=3", {"text": "Hello"}, "num_heads 8 is not divisible by num_kv_heads 3"),
    ],
)
def test_contradictions_cost_only_the_fields_that_contradict(link: str, kept: dict[str, object], told: str) -> None:
    experiment, problems = Experiment.from_query(link)
    assert len(problems) == 1
    assert told in problems[0]
    assert {name: experiment.to_fields()[name] for name in kept} == kept


values = (
    texts
    | st.integers().map(str)
    | floats.map(str)
    | st.sampled_from([*INIT_SCHEMES, "none", "true", "causal,local", "custom", "sdpa", "fused", "rotary", "101/010"])
    | st.sampled_from(["7", "8", "64", "512", "-inf", "random", "sinusoidal", "q,k", "-1", "1e400", "١٢", "1_0"])
    | st.binary(max_size=40).map(lambda blob: "~" + base64.urlsafe_b64encode(blob).decode())
    | st.binary(max_size=40).map(lambda blob: "~" + base64.urlsafe_b64encode(zlib.compress(blob)).decode())
)


@settings(max_examples=500, deadline=None, derandomize=True)
@example({"seed": "nan", "\ud800": "x", "text": "\ud800"})
@given(st.dictionaries(st.sampled_from(list(FIELDS)) | texts, values, max_size=12))
def test_no_link_is_an_exception(query: dict[str, str]) -> None:
    read, problems = read_query(query)
    assert set(read) == set(FIELDS)
    unknown = [name for name in query if name not in FIELDS]
    assert sum("not a setting" in sentence for sentence in problems) == len(unknown)
    experiment, told = Experiment.from_query(query)
    assert told[: len(problems)] == problems
    fields = experiment.to_fields()
    for name in query:
        used = name not in FIELDS or name not in fields or fields[name] == read[name]
        assert used or any(name in sentence for sentence in told) or name in ("positions", "rope_theta"), name
    assert all(math.isfinite(v) for v in fields.values() if isinstance(v, float))
