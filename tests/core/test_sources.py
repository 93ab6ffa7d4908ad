"""Tokens as a reader sees them, embeddings that depend on token and seed alone, positions, the memory budget.

Token lists are written by hand. Distributions are held against their moments. Nothing of the attention layer itself is
here; whole runs are in test_run.py.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

from mha_core import AttentionConfig, Experiment, MhaError, RandomSource, TextSource, run
from mha_core.budget import budget_bytes, check_budget, run_bytes, spell_bytes
from mha_core.experiment import prepare
from mha_core.sources.inputs import embed, measure, sinusoidal_positions, token_vector
from mha_core.sources.tokens import DEFAULT_TEXT, PAD, tokenise

FAMILY, FLAG, THUMB = "👩‍👩‍👧‍👦", "🇨🇦", "👍🏽"
WORDS = [
    ("The cat didn't", ["The", "cat", "didn't"]),
    ("l’été, rock'n'roll.", ["l’été", ",", "rock'n'roll", "."]),
    ("dogs' 'quoted'", ["dogs", "'", "'", "quoted", "'"]),
    ("我喜欢猫。", ["我", "喜", "欢", "猫", "。"]),
    ("かな カナ", ["か", "な", "カ", "ナ"]),
    ("GPT是模型v2", ["GPT", "是", "模", "型", "v2"]),
    (f"a{FAMILY}{FLAG}{FLAG}{THUMB}!", ["a", FAMILY, FLAG, FLAG, THUMB, "!"]),
    ("שלום עולם", ["שלום", "עולם"]),
    ("مرحبا، بالعالم", ["مرحبا", "،", "بالعالم"]),
    ("cafe\u0301 n\u0303a", ["cafe\u0301", "n\u0303a"]),
    ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
    ("1️⃣ x_1 3.14", ["1️⃣", "x_1", "3", ".", "14"]),
    ("  tabs\t and \u3000 wide spaces ", ["tabs", "and", "wide", "spaces"]),
    ("one", ["one"]),
]


@pytest.mark.parametrize(("text", "tokens"), WORDS)
def test_words(text: str, tokens: list[str]) -> None:
    assert tokenise(text).sequences == (tuple(tokens),)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a b", ["a", "␣", "b"]),
        (f"{FAMILY}{FLAG}{THUMB}", [FAMILY, FLAG, THUMB]),
        ("e\u0301é", ["e\u0301", "é"]),
        ("שָׁ", ["שָׁ"]),
        ("猫x", ["猫", "x"]),
    ],
)
def test_characters(text: str, tokens: list[str]) -> None:
    assert tokenise(text, "char").sequences == (tuple(tokens),)


@pytest.mark.parametrize("tokenizer", ["word", "char"])
def test_lines_are_sequences_and_empty_lines_are_left_out(tokenizer: str) -> None:
    unix, windows = "a b c\n\n  \nd\n", "\r\na b c\r\n\r\nd\r\n"
    assert tokenise(unix, tokenizer) == tokenise(windows, tokenizer)
    batch = tokenise(windows, tokenizer)
    length = 3 if tokenizer == "word" else 5
    assert (batch.batch, batch.length, batch.lengths) == (2, length, (length, 1))
    assert batch.padded[1] == ("d",) + (PAD,) * (length - 1)
    assert batch.padded[0] == batch.sequences[0]


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \t\r\n\u3000\n"])
@pytest.mark.parametrize("tokenizer", ["word", "char"])
def test_text_without_a_token_is_refused_with_an_example(text: str, tokenizer: str) -> None:
    with pytest.raises(MhaError, match=r"text has no token in it\. Try the example sentence") as caught:
        tokenise(text, tokenizer)
    assert dict(caught.value.try_[0].changes) == {"text": DEFAULT_TEXT}
    with pytest.raises(MhaError, match="memory_text has no token in it"):
        measure(TextSource("a", memory_text=text, tokenizer=tokenizer))


def test_limits_of_texts() -> None:
    assert tokenise("ab " * 3_333 + "c").lengths == (3_334,)  # 10,000 characters
    assert tokenise("x" * 100_000).length == 1
    assert tokenise("猫" * 10_000).length == 10_000
    with pytest.raises(MhaError, match="text is 100,001 characters; it must be at most 100,000 characters"):
        tokenise("x" * 100_001)
    assert tokenise("x\n" * 512).batch == 512
    with pytest.raises(MhaError, match="memory_text is 513 lines; it must be at most 512 lines") as caught:
        tokenise("x\n" * 513, field="memory_text")
    assert all(tokenise(dict(s.changes)["memory_text"]).batch <= 512 for s in caught.value.try_)


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"text": 5}, "text"),
        ({"text": None}, "text"),
        ({"memory_text": 5}, "memory_text"),
        ({"tokenizer": "x"}, "tokenizer"),
        ({"embeddings": "x"}, "embeddings"),
    ],
)
def test_text_sources_are_checked(choices: dict[str, object], field: str) -> None:
    with pytest.raises(MhaError) as caught:
        TextSource(**choices)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["batch", "q_len", "k_len"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, 10**9, "3"])
def test_random_sizes_are_checked(name: str, value: object) -> None:
    with pytest.raises(MhaError, match=rf"{name} is .*; it must be a whole number from 1 to") as caught:
        RandomSource(**{name: value})
    assert caught.value.field == name


# --- cross-attention texts ------------------------------------------------------------------------------------------


def test_one_memory_line_serves_every_line() -> None:
    sizes = measure(TextSource("a b\nc\nd e f", memory_text="u v w x y"))
    assert (sizes.batch, sizes.q_len, sizes.k_len, sizes.is_cross) == (3, 3, 5, True)
    assert sizes.k_tokens.sequences == (("u", "v", "w", "x", "y"),) * 3


def test_lines_pair_up_or_are_refused_with_what_works() -> None:
    assert measure(TextSource("a\nb", memory_text="u v\nw")).k_tokens.lengths == (2, 1)
    for memory in ("u\nv", "\nu v\nw", "\n\nu\nv\nw\nx"):
        source = TextSource("a\nb\nc", memory_text=memory)
        with pytest.raises(MhaError, match=r"text has 3 lines, but memory_text has \d; each line attends to") as caught:
            measure(source)
        for suggestion in caught.value.try_:
            changes = {"text": source.text} | dict(suggestion.changes)
            assert measure(TextSource(**changes)).batch == 3, suggestion.text


# --- embeddings -----------------------------------------------------------------------------------------------------


def embedded(text: str, seed: int = 0, positions: str = "none", width: int = 22) -> torch.Tensor:
    source = TextSource(text)
    return embed(source, measure(source), AttentionConfig(width, 2), positions, seed).query


def test_a_token_has_one_vector_in_every_text_and_another_for_every_seed() -> None:
    first, second = embedded("the cat saw the dog"), embedded("dog\na b cat")
    assert torch.equal(first[0, 0], first[0, 3])
    assert torch.equal(first[0, 1], second[1, 2])
    assert torch.equal(first[0, 4], second[0, 0])
    assert torch.equal(first[0, 1], token_vector("cat", 22, 0))
    assert not torch.equal(first[0, 0], first[0, 1])
    assert not torch.equal(token_vector("cat", 22, 0), token_vector("cat", 22, 1))
    assert not torch.equal(token_vector("1", 22, 0), token_vector("0", 22, 1))


def test_token_vectors_are_standard_normal() -> None:
    drawn = torch.stack([token_vector(str(n), 500, 3) for n in range(200)])
    assert abs(drawn.mean().item()) < 5 / math.sqrt(100_000)
    assert drawn.std().item() == pytest.approx(1, abs=0.01)
    correlation = torch.corrcoef(drawn) - torch.eye(200)
    assert correlation.abs().max() < 6 / math.sqrt(500), "tokens are independent of one another"


def test_sinusoidal_positions_equal_the_hand_formula() -> None:
    for width in (6, 7):  # even, and odd: the last cosine is cut off
        table = sinusoidal_positions(5, width)
        assert table.shape == (5, width)
        for position in range(5):
            for channel in range(width):
                angle = position / 10_000 ** (2 * (channel // 2) / width)  # Vaswani et al. 2017, section 3.5
                expected = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
                assert table[position, channel].item() == pytest.approx(expected, abs=1e-6)


def test_positions_are_added_only_when_sinusoidal() -> None:
    plain, added, rotary = (embedded("a b\nc", positions=name) for name in ("none", "sinusoidal", "rotary"))
    torch.testing.assert_close(added, plain + sinusoidal_positions(2, 22))
    assert torch.equal(rotary, plain)


def drawn(distribution: str, **sizes: int) -> torch.Tensor:
    source = RandomSource(distribution=distribution, **sizes)
    return embed(source, measure(source), AttentionConfig(74, 2), "none", 5).query


def test_random_distributions_have_their_moments() -> None:
    normal, uniform = (drawn(name, batch=11, q_len=101).double() for name in ("normal", "uniform"))
    for values, kurtosis in ((normal, 3.0), (uniform, 1.8)):
        assert values.shape == (11, 101, 74)
        assert abs(values.mean().item()) < 5 / math.sqrt(values.numel())
        assert values.var().item() == pytest.approx(1, rel=0.03)
        assert (values**4).mean().item() / values.var().item() ** 2 == pytest.approx(kurtosis, rel=0.05)
    assert uniform.abs().max().item() <= math.sqrt(3)
    assert (drawn("constant", batch=2, q_len=3) == 1).all()
    one_hot = drawn("one_hot", batch=3, q_len=79)
    assert (one_hot.sum(-1) == 1).all()
    assert one_hot.argmax(-1).tolist() == [[i % 74 for i in range(79)]] * 3


def test_inputs_of_self_and_cross_attention() -> None:
    def inputs(config: AttentionConfig, k_len: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        source = RandomSource(batch=2, q_len=3, k_len=k_len)
        given = embed(source, measure(source), config, "none", 0)
        return given.query, given.key, given.value

    query, key, value = inputs(AttentionConfig(14, 2), None)
    assert query is key is value
    query, key, value = inputs(AttentionConfig(14, 2), 3)
    assert key is value
    assert not torch.equal(query, key), "memory is drawn apart even when it is as long"
    shapes = [tuple(t.shape) for t in inputs(AttentionConfig(14, 2, kdim=11, vdim=13), 5)]
    assert shapes == [(2, 3, 14), (2, 5, 11), (2, 5, 13)]


# --- memory budget --------------------------------------------------------------------------------------------------


def test_budget_counts_at_least_what_a_run_keeps() -> None:
    config = AttentionConfig(44, 4, num_kv_heads=2, kdim=13, vdim=17)
    done = run(Experiment(RandomSource(batch=3, q_len=29, k_len=31), config))
    kept = [done.q, done.k, done.v, done.scores, done.weights, done.context, done.output, *vars(done.inputs).values()]
    assert run_bytes(config, 3, 29, 31) >= sum(tensor.numel() * 4 for tensor in kept)
    assert run_bytes(config, 3, 29, 31, itemsize=8) == 2 * run_bytes(config, 3, 29, 31)


def test_too_large_is_refused_by_bytes_before_any_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was allocated")

    for name in ("empty", "randn", "rand", "zeros", "ones", "arange", "tensor", "eye"):
        monkeypatch.setattr(torch, name, forbidden)
    # One score matrix alone: 2 x 8 x 65,536 x 65,536 x 4 bytes = 2^38 bytes.
    text = "one score matrix alone, batch 2 x 8 heads x 65,536 x 65,536 x 4 bytes, is 274,877,906,944 bytes"
    with pytest.raises(MhaError, match=re.escape(text)) as caught:
        run(Experiment(RandomSource(batch=2, q_len=65_536)))
    assert caught.value.got > 2**38
    assert f"{caught.value.got:,} bytes" in str(caught.value)
    assert "more than the budget of 1.0 GiB" in str(caught.value)


def test_budget_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Experiment(RandomSource(batch=2, q_len=5), AttentionConfig(14, 2))
    need = run_bytes(small.attention, 2, 5, 5)
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(need))
    assert budget_bytes() == need
    assert prepare(small).q_len == 5
    check_budget(small.attention, 2, 5, 5)
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(need - 1))
    with pytest.raises(MhaError, match=f"this needs {need:,} bytes"):
        prepare(small)
    with pytest.raises(MhaError, match=f"this needs {need:,} bytes"):
        check_budget(small.attention, 2, 5, 5)
    monkeypatch.delenv("MHA_LAB_MEMORY_BUDGET")
    assert budget_bytes() == 2**30


TOO_LARGE = {
    "long random": Experiment(RandomSource(batch=2, q_len=65_536)),
    "long cross": Experiment(RandomSource(batch=3, q_len=30_000, k_len=40_000)),
    "long text": Experiment(TextSource("猫" * 20_000)),
    "many characters": Experiment(TextSource("abc " * 5_000, tokenizer="char")),
    "blank first line": Experiment(TextSource("\n" + "猫" * 20_000)),
    "long memory": Experiment(TextSource("a b", memory_text="猫" * 100_000), AttentionConfig(1024, 256)),
    "wide layer": Experiment(RandomSource(batch=1, q_len=1), AttentionConfig(16_384, 8)),
}


@pytest.mark.parametrize("experiment", TOO_LARGE.values(), ids=TOO_LARGE)
def test_every_suggestion_for_a_smaller_input_fits(experiment: Experiment) -> None:
    with pytest.raises(MhaError, match="more than the budget") as caught:
        prepare(experiment)
    for suggestion in caught.value.try_:
        repaired = Experiment.from_fields(experiment.to_fields() | dict(suggestion.changes))
        assert prepare(repaired).q_len >= 1, suggestion.text


def test_bytes_are_spelled_with_binary_units() -> None:
    spelled = [spell_bytes(n) for n in (0, 1023, 1536, 2**20, 2**30, 5 * 2**40)]
    assert spelled == ["0 bytes", "1023 bytes", "1.5 KiB", "1.0 MiB", "1.0 GiB", "5.0 TiB"]
