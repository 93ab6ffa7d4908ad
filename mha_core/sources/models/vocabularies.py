"""Vocabularies of two trained models: their tokens as people write them, and the rows of their token tables.

WordPiece is that of all-MiniLM-L6-v2, byte-level BPE that of SmolLM2. A row is what the model looks up first: no
position is added and no layer norm applied. The files come from installed packages (`weight_packages`) and are opened
when a vocabulary is first used, once per process. Whole models are not here.

BPE splits a text as transformers does with the same file. The publisher's tokenizer also cuts before every digit, which
differs only where several spaces stand before a number.

Source: the byte alphabet is that of GPT-2 (Radford et al. 2019), its encoder.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor

from mha_core.config import AttentionConfig
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.sources.models.gguf_file import open_gguf
from mha_core.sources.models.weight_packages import PACKAGES, find_folder, find_weights

_CONTROL = 3  # the word of GGUF's token_type for <|im_start|> and its like
_SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥"}
_loading = threading.Lock()


@dataclass(frozen=True)
class TrainedTokens:
    """What is known of a model's tokens without its files.

    Attributes:
        model: name in `weight_packages`, and word of the field `embeddings`.
        tokenizer: word of the field `tokenizer`.
        title: of the tokenizer.
        width: of a row. num_heads: of the model's layers, which divide that width.
    """

    model: str
    tokenizer: str
    title: str
    width: int
    num_heads: int


TRAINED_TOKENS: dict[str, TrainedTokens] = {
    trained.model: trained
    for trained in (
        TrainedTokens("minilm", "wordpiece", "WordPiece", 384, 12),
        TrainedTokens("smollm2", "bpe", "BPE", 576, 9),
    )
}


def check_embeddings(embeddings: str, tokenizer: str, config: AttentionConfig, *, sizes_are_free: bool = True) -> None:
    """Refuse a model's token table where the tokens or the widths are not the model's.

    Args:
        embeddings: "random", which always fits, or a model.
        sizes_are_free: whether the layer's sizes may be changed; a checkpoint fixes them.

    Raises:
        MhaError: field "embeddings"; its first suggestion makes everything fit, where that is possible.
    """
    if embeddings == "random":
        return
    trained = TRAINED_TOKENS[embeddings]
    widths = {"embed_dim": config.embed_dim, "kdim": config.kdim, "vdim": config.vdim}
    wrong: dict[str, object] = {} if tokenizer == trained.tokenizer else {"tokenizer": tokenizer}
    wrong |= {name: width for name, width in widths.items() if width not in (None, trained.width)}
    if not wrong:
        return
    found = ", ".join(f"{name} is {value}" for name, value in wrong.items())
    of_model = f"the token embeddings of {PACKAGES[trained.model].title}"
    problem = f"{of_model} are {trained.width} numbers for each {trained.title} token, but {found}"
    need = f"used with tokenizer {trained.tokenizer} and embed_dim {trained.width}"
    try_ = [Suggestion.of("random embeddings", embeddings="random")]
    if sizes_are_free or wrong.keys() <= {"tokenizer"}:
        try_.insert(0, _fitting(trained, config, wrong))
    raise MhaError("embeddings", embeddings, need, try_, problem=problem)


def _fitting(trained: TrainedTokens, config: AttentionConfig, wrong: Mapping[str, object]) -> Suggestion:
    """Change all that does not fit at once; heads only where the width changes."""
    changes: dict[str, FieldValue] = {"tokenizer": trained.tokenizer} if "tokenizer" in wrong else {}
    if "embed_dim" in wrong:
        changes |= {"embed_dim": trained.width, "num_heads": trained.num_heads}
        if config.num_kv_heads is not None and trained.num_heads % config.num_kv_heads:
            changes["num_kv_heads"] = None
    return Suggestion.of(**changes, **{name: None for name in ("kdim", "vdim") if name in wrong})


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one model; no two of them are shown alike.

    Attributes:
        shown: each token as people read it, in the order of the model's ids.
        pad: the token that the model's files name for padding, as shown.
        encode: a text to ids, without tokens that mark its beginning or end.
        read: ids to rows of the token table, (N, width), float32.
    """

    shown: tuple[str, ...]
    pad: str
    encode: Callable[[str], list[int]]
    read: Callable[[Sequence[int]], Tensor]

    def tokens(self, line: str) -> list[str]:
        """Split a line into tokens, as they are shown."""
        return [self.shown[number] for number in self.encode(line)]

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {token: number for number, token in enumerate(self.shown)}

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Give the model's ids of shown tokens."""
        return [self._numbers[token] for token in tokens]

    def vectors(self, tokens: Sequence[str]) -> Tensor:
        """Give the rows of shown tokens, (N, width), float32."""
        return self.read(self.ids(tokens))


def show_bytes(token: str) -> str:
    """Show a token written in GPT-2's byte alphabet: "Ġthe" as ␣the, a byte that is no whole character as <0xE2>."""
    text = bytes(_bytes_of_letters()[letter] for letter in token).decode("utf-8", "surrogateescape")
    return "".join(map(_show_character, text))


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    """Visible bytes of Latin-1 stand for themselves, the others for U+0100 and what follows, in their order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _show_character(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    if "\udc80" <= character <= "\udcff":  # surrogateescape: a byte that could not be decoded
        return f"<0x{ord(character) - 0xDC00:02X}>"
    return character if character.isprintable() else f"<U+{ord(character):04X}>"


def _open_minilm() -> Vocabulary:
    tokenizer = Tokenizer.from_file(str(find_folder("minilm") / "tokenizer.json"))
    tokenizer.no_truncation()  # the file cuts and fills every text to 128 tokens
    tokenizer.no_padding()
    ids = tokenizer.get_vocab()
    shown = tuple(sorted(ids, key=ids.__getitem__))

    @functools.cache
    def table() -> Tensor:
        with safe_open(find_weights("minilm"), "pt") as weights:
            rows: Tensor = weights.get_tensor("embeddings.word_embeddings.weight")  # mapped: read where it is used
        return rows

    def read(ids: Sequence[int]) -> Tensor:
        return table()[list(ids)]

    return Vocabulary(shown, "[PAD]", lambda text: _encode(tokenizer, text), read)


def _open_smollm2() -> Vocabulary:
    file = open_gguf(find_weights("smollm2"))
    tokens: tuple[str, ...] = file.metadata["tokenizer.ggml.tokens"]
    shown = tuple(map(show_bytes, tokens))
    tokenizer = _byte_level_bpe(tokens, file.metadata)

    def read(ids: Sequence[int]) -> Tensor:
        return torch.from_numpy(file.rows("token_embd.weight", ids))

    pad = shown[file.metadata["tokenizer.ggml.padding_token_id"]]
    return Vocabulary(shown, pad, lambda text: _encode(tokenizer, text), read)


def _byte_level_bpe(tokens: Sequence[str], metadata: Mapping[str, Any]) -> Tokenizer:
    numbers = {token: number for number, token in enumerate(tokens)}
    merges = [(left, right) for left, right in map(str.split, metadata["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == _CONTROL])
    return tokenizer


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


_OPEN: dict[str, Callable[[], Vocabulary]] = {"minilm": _open_minilm, "smollm2": _open_smollm2}


@functools.cache
def _opened(model: str) -> Vocabulary:
    return _OPEN[model]()


def vocabulary(model: str) -> Vocabulary:
    """Open the vocabulary of "minilm" or "smollm2", or give the one that is open.

    Raises:
        MhaError: field "tokenizer"; the model's package is not installed, or its weights are not the published ones.
    """
    try:
        with _loading:
            return _opened(model)
    except MhaError as error:
        plain: dict[str, FieldValue] = {"tokenizer": "word", "embeddings": "random"}
        try_ = [Suggestion.of("words with random embeddings", **plain)]
        got = TRAINED_TOKENS[model].tokenizer
        raise MhaError("tokenizer", got, "word or char", try_, problem=error.problem) from error
