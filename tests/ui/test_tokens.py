"""Tokens and token tables of trained models on the page: labels of the maps, and the way from words to real rows."""

from __future__ import annotations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from mha_core import AttentionConfig, Experiment, InitSpec, TextSource, run
from tests.ui.page import grid, large_map, open_page, press, set_widget, shown, texts, whole

WORDS = "The cat drank tea while the king and queen slept"


def labels(page: AppTest) -> list[str]:
    """The tokens on both axes of the large map."""
    header = large_map(page).header
    assert header["q"] == header["k"]
    return list(header["q"])


@pytest.mark.parametrize(
    ("tokenizer", "pieces"),
    [
        ("bpe", "The ␣unbelie vable ␣café ␣costs ␣ 1 2"),
        ("wordpiece", "the unbelievable cafe costs 12"),
    ],
)
def test_choosing_tokens_shows_the_models_pieces(tokenizer: str, pieces: str) -> None:
    page = open_page(text="The unbelievable café costs 12", embed_dim="24", num_heads="4")
    set_widget(page, "tokenizer", tokenizer)
    assert labels(page) == pieces.split(" ")
    assert shown(page).source == TextSource("The unbelievable café costs 12", None, tokenizer)


def test_choosing_a_token_table_takes_one_button() -> None:
    page = set_widget(open_page(text=WORDS), "embeddings", "minilm")
    assert "384" in page.error[0].value
    assert "about 0.06" in texts(page), "that scores will be small is said beside the choice"
    page = press(page, "try_0")
    expected = Experiment(TextSource(WORDS, None, "wordpiece", "minilm"), AttentionConfig(384, 12))
    assert not page.error
    assert shown(page) == expected
    assert whole(page).get_by_key("field_embed_dim").value == 384
    assert np.array_equal(large_map(page).values, run(expected).weights[0, 0].numpy())
    assert labels(page)[:2] == ["the", "cat"]
    page = set_widget(page, "embeddings", "random")
    assert "about 0.06" not in texts(whole(page))


@pytest.mark.parametrize(
    ("model", "tokenizer", "width", "gain"), [("minilm", "wordpiece", 384, 6), ("smollm2", "bpe", 576, 3)]
)
def test_words_that_are_alike_find_each_other(model: str, tokenizer: str, width: int, gain: float) -> None:
    query = {"text": WORDS, "embeddings": model, "kdim": "7", "num_kv_heads": "2", "scale": "3", "positions": "rotary"}
    page = press(open_page(**query), "alike")
    assert not page.error
    init = InitSpec("identity", gain=gain, targets=("q", "k"))
    assert shown(page) == Experiment(TextSource(WORDS, None, tokenizer, model), AttentionConfig(width, 1), init=init)
    tokens, values = [label.strip("␣").lower() for label in labels(page)], large_map(page).values
    cat, tea, king, queen = (tokens.index(word) for word in ("cat", "tea", "king", "queen"))
    for word, other in ((king, queen), (queen, king)):
        assert values[word].argmax() == word
        assert values[word, other] > 1.5 * max(values[word, cat], values[word, tea])
    assert grid(page).header["heads"] == 1
