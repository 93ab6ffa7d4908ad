"""Inputs of the attention layer: embedded text or random numbers, as one `Inputs` record.

Random embeddings are drawn per token from the seed and the token itself: the same token has the same vector in every
text, at every place, in every process. Real ones are the rows of a trained model's token table (`vocabularies`), for
that model's own tokens and width; padding is the row of the token that the model pads with.

Axes: B batch, Sq queries, Sk keys, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from mha_core.config import AttentionConfig, require_choice, require_int
from mha_core.errors import FieldValue, MhaError, Suggestion
from mha_core.init_schemes import generator_for
from mha_core.sources.models.vocabularies import check_embeddings, vocabulary
from mha_core.sources.tokens import DEFAULT_TEXT, PAD, TokenBatch, Tokenizer, tokenise

Positions = Literal["none", "sinusoidal", "rotary"]
Embeddings = Literal["random", "minilm", "smollm2"]
Distribution = Literal["normal", "uniform", "constant", "one_hot"]
MAX_BATCH = 512
MAX_LENGTH = 65_536


@dataclass(frozen=True)
class TextSource:
    """Text to embed, one sequence per line.

    Args:
        text: the query side; also the key side unless `memory_text` is given.
        memory_text: a second text to attend to (cross-attention); one line serves every line of `text`.
        tokenizer: "word", "char", "wordpiece" (of all-MiniLM-L6-v2) or "bpe" (of SmolLM2).
        embeddings: "random" per token, or the token table of "minilm" (needs its "wordpiece" and E = 384) or "smollm2"
            (needs its "bpe" and E = 576).

    Raises:
        MhaError: not text, an unknown tokenizer or unknown embeddings.
    """

    text: str = DEFAULT_TEXT
    memory_text: str | None = None
    tokenizer: Tokenizer = "word"
    embeddings: Embeddings = "random"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise MhaError("text", self.text, "text", [Suggestion.of("the example sentence", text=DEFAULT_TEXT)])
        for name, text in (("text", self.text), ("memory_text", self.memory_text)):
            if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                raise MhaError(name, "bytes that are not UTF-8", "Unicode text", problem=f"{name} is not valid Unicode")
        if self.memory_text is not None and not isinstance(self.memory_text, str):
            raise MhaError("memory_text", self.memory_text, "text, or none", [Suggestion.of(memory_text=None)])
        require_choice("tokenizer", self.tokenizer, get_args(Tokenizer))
        require_choice("embeddings", self.embeddings, get_args(Embeddings))


@dataclass(frozen=True)
class RandomSource:
    """Random embeddings of a given size.

    Args:
        batch: B. q_len: Sq. k_len: Sk; None means self-attention, keys and queries being the same tensor.
        distribution: "normal" N(0, 1), "uniform" on [-√3, √3] (variance 1), "constant" (all ones), or "one_hot"
            (token i is the unit vector i mod E).

    Raises:
        MhaError: a size out of range or an unknown distribution.
    """

    batch: int = 2
    q_len: int = 16
    k_len: int | None = None
    distribution: Distribution = "normal"

    def __post_init__(self) -> None:
        require_int("batch", self.batch, 1, MAX_BATCH)
        require_int("q_len", self.q_len, 1, MAX_LENGTH)
        if self.k_len is not None:
            require_int("k_len", self.k_len, 1, MAX_LENGTH)
        require_choice("distribution", self.distribution, get_args(Distribution))


@dataclass(frozen=True)
class Sizes:
    """Sizes of an input, known before any tensor exists: B, Sq, Sk, the token labels and the real key lengths."""

    q_tokens: TokenBatch
    k_tokens: TokenBatch
    is_cross: bool

    @property
    def batch(self) -> int:
        """Number B of sequences."""
        return self.q_tokens.batch

    @property
    def q_len(self) -> int:
        """Number Sq of queries."""
        return self.q_tokens.length

    @property
    def k_len(self) -> int:
        """Number Sk of keys."""
        return self.k_tokens.length


@dataclass(frozen=True)
class Inputs:
    """Embeddings: query (B, Sq, E), key (B, Sk, kdim), value (B, Sk, vdim); one tensor where they are the same."""

    query: Tensor
    key: Tensor
    value: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        """Change the number format; inputs that are one tensor stay one tensor."""
        changed = {id(tensor): tensor.to(dtype) for tensor in (self.query, self.key, self.value)}
        return Inputs(changed[id(self.query)], changed[id(self.key)], changed[id(self.value)])


class TrainedSource(Protocol):
    """An input that comes with its layer (mha_core.sources.trained)."""

    def sizes(self) -> Sizes:
        """Find its sizes."""

    def title(self) -> str:
        """Name the model or file, and the layer."""

    def as_text(self) -> TextSource:
        """Give the text it reads."""

    def stand_in(self) -> TextSource | RandomSource:
        """Give an input of the same sizes that needs no model."""


def measure(source: TextSource | RandomSource | TrainedSource) -> Sizes:
    """Find the sizes and labels of an input.

    Raises:
        MhaError: no token, or two texts whose numbers of lines do not fit.
    """
    if not isinstance(source, TextSource | RandomSource):
        return source.sizes()
    if isinstance(source, RandomSource):
        q_tokens = _numbered(source.batch, source.q_len)
        k_tokens = q_tokens if source.k_len is None else _numbered(source.batch, source.k_len)
        return Sizes(q_tokens, k_tokens, source.k_len is not None)
    q_tokens = tokenise(source.text, source.tokenizer)
    if source.memory_text is None:
        return Sizes(q_tokens, q_tokens, False)
    k_tokens = tokenise(source.memory_text, source.tokenizer, field="memory_text")
    if k_tokens.batch == 1:
        k_tokens = TokenBatch(k_tokens.sequences * q_tokens.batch)
    if k_tokens.batch != q_tokens.batch:
        problem = (
            f"text has {q_tokens.batch} lines, but memory_text has {k_tokens.batch}; each line attends to one line"
        )
        need = f"1 line or {q_tokens.batch} lines"
        fewer = next(line for line in source.memory_text.splitlines() if line.strip())
        try_ = [
            Suggestion(((("memory_text"), fewer),), "its first line for every line of text"),
            Suggestion.of("no second text", memory_text=None),
        ]
        raise MhaError("memory_text", f"{k_tokens.batch} lines", need, try_, problem=problem)
    return Sizes(q_tokens, k_tokens, True)


def _numbered(batch: int, length: int) -> TokenBatch:
    return TokenBatch((tuple(map(str, range(length))),) * batch)


def smaller_inputs(source: TextSource | RandomSource | TrainedSource, sizes: Sizes, keep: float) -> list[Suggestion]:
    """Think of smaller inputs of the same kind, about `keep` times as long; whether they fit is not asked here."""
    if isinstance(source, RandomSource):
        q_len = max(1, int(sizes.q_len * keep))
        k_len = None if source.k_len is None else max(1, int(sizes.k_len * keep))
        return [Suggestion.of(f"{q_len:,} tokens", q_len=q_len, k_len=k_len), Suggestion.of(batch=1)]
    source = source if isinstance(source, TextSource) else source.as_text()
    suggestions = []
    if source.tokenizer != "word":
        random: dict[str, FieldValue] = {} if source.embeddings == "random" else {"embeddings": "random"}
        suggestions = [Suggestion.of("words for tokens", tokenizer="word", **random)]
    lines = [line for line in source.text.splitlines() if line.strip()]
    if len(lines) > 1:
        suggestions.append(Suggestion((("text", lines[0]), ("memory_text", None)), "the first line only"))
    for name, text in (("text", source.text), ("memory_text", source.memory_text or "")):
        cut = "\n".join(line.strip()[: int(len(line) * keep)] for line in text.splitlines() if line.strip())
        if cut.strip():
            share = f"about the first {keep:.0%} of each line of {name}"
            suggestions.append(Suggestion(((name, cut),), share))
    return suggestions


def embed(
    source: TextSource | RandomSource | TrainedSource,
    sizes: Sizes,
    config: AttentionConfig,
    positions: Positions,
    seed: int,
) -> Inputs:
    """Draw or read the embeddings, float32; sinusoidal positions are added, rotary ones are left to the layer.

    What a trained model gives its layers is `mha_core.trained_layer`; here a stand-in takes its place.

    Raises:
        MhaError: field "embeddings"; a model's token table with tokens or widths of another.
    """
    source = source if isinstance(source, TextSource | RandomSource) else source.stand_in()
    if isinstance(source, TextSource):
        check_embeddings(source.embeddings, source.tokenizer, config)

    def draw(tokens: TokenBatch, width: int, side: str) -> Tensor:
        if isinstance(source, TextSource):
            vectors = _embed_tokens(source, tokens, width, seed)
        else:
            vectors = _draw_random(source, tokens, width, seed, side)
        return vectors + sinusoidal_positions(tokens.length, width) if positions == "sinusoidal" else vectors

    query = draw(sizes.q_tokens, config.embed_dim, "query")
    shared = not sizes.is_cross and config.key_dim == config.embed_dim
    key = query if shared else draw(sizes.k_tokens, config.key_dim, "memory" if sizes.is_cross else "query")
    shared = config.value_dim == config.key_dim
    value = key if shared else draw(sizes.k_tokens, config.value_dim, "memory" if sizes.is_cross else "query")
    return Inputs(query, key, value)


def token_vector(token: str, width: int, seed: int) -> Tensor:
    """Draw the embedding of one token, N(0, 1), from the seed and the token alone. Returns (width,)."""
    return torch.randn(width, generator=generator_for(seed, "token", token))


def token_vectors(source: TextSource, tokens: Sequence[str], width: int, seed: int) -> Tensor:
    """Give the embedding of each token, (N, width), float32: drawn, or read from the model's token table."""
    if source.embeddings == "random":
        return torch.stack([token_vector(token, width, seed) for token in tokens])
    trained = vocabulary(source.embeddings)
    return trained.vectors([trained.pad if token == PAD else token for token in tokens])


def _embed_tokens(source: TextSource, tokens: TokenBatch, width: int, seed: int) -> Tensor:
    """(B, S, width)."""
    rows_of = {token: row for row, token in enumerate(dict.fromkeys(t for line in tokens.padded for t in line))}
    table = token_vectors(source, list(rows_of), width, seed)  # (V, width)
    rows = torch.tensor([[rows_of[token] for token in line] for line in tokens.padded])  # (B, S)
    return table[rows]


def _draw_random(source: RandomSource, tokens: TokenBatch, width: int, seed: int, side: str) -> Tensor:
    """(B, S, width)."""
    shape, rng = (tokens.batch, tokens.length, width), generator_for(seed, "random", side)
    return DISTRIBUTIONS[source.distribution](shape, rng)


def _one_hot(shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
    rows = torch.eye(shape[2])[torch.arange(shape[1]) % shape[2]]  # (S, width)
    return rows.expand(shape).clone()


DISTRIBUTIONS: dict[str, Callable[[tuple[int, int, int], torch.Generator], Tensor]] = {
    "normal": lambda shape, rng: torch.randn(shape, generator=rng),
    "uniform": lambda shape, rng: (torch.rand(shape, generator=rng) * 2 - 1) * 3**0.5,
    "constant": lambda shape, rng: torch.ones(shape),
    "one_hot": _one_hot,
}


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Give sin/cos position vectors (S, width): channels 2i and 2i+1 turn with 10000^(-2i/width).

    Source: Vaswani et al. 2017, section 3.5.
    """
    channel = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10_000.0 ** (-channel / width)  # (S, ceil(width/2))
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (S, 2*ceil(width/2))
    return table[:, :width].float()
