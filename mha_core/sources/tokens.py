"""Text to tokens: one line is one sequence, padded to the longest of the batch.

Words and characters as a reader sees them (Unicode grapheme clusters, UAX 29), so that an emoji family, a flag or a
letter with its accents is one token; or as a trained model reads it, by its vocabulary (`vocabularies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import regex

from mha_core.errors import MhaError, Suggestion
from mha_core.sources.models.vocabularies import vocabulary

Tokenizer = Literal["word", "char", "wordpiece", "bpe"]
PAD = "[pad]"
MAX_CHARACTERS = 100_000
MAX_LINES = 512
DEFAULT_TEXT = "The animal didn't cross the street because it was too tired"

# Scripts written without spaces go character by character, as in BERT's BasicTokenizer; other letters and digits run
# on, with inner apostrophes and combining marks; anything else that shows (punctuation, emoji) is one cluster.
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}]\p{M}*"
    r"|[\p{L}\p{N}_](?:(?![\p{Han}\p{Hiragana}\p{Katakana}])[\p{L}\p{M}\p{N}_\u200c\u200d]|['’](?=\p{L}))*"
    r"|(?=\S)\X"
)
_CLUSTER = regex.compile(r"\X")


def words(line: str) -> list[str]:
    """Split a line into words, single CJK characters, punctuation marks and emoji."""
    return [token for token in _WORD.findall(line) if token.strip()]


def characters(line: str) -> list[str]:
    """Split a line into grapheme clusters, spaces included (shown as ␣)."""
    return [cluster if cluster.strip() else "␣" for cluster in _CLUSTER.findall(line)]


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "word": words,
    "char": characters,
    "wordpiece": lambda line: vocabulary("minilm").tokens(line),
    "bpe": lambda line: vocabulary("smollm2").tokens(line),
}


@dataclass(frozen=True)
class TokenBatch:
    """Sequences of tokens; `padded` gives them all the length of the longest."""

    sequences: tuple[tuple[str, ...], ...]

    @property
    def batch(self) -> int:
        """Number B of sequences."""
        return len(self.sequences)

    @property
    def length(self) -> int:
        """Length S of the longest sequence."""
        return max(map(len, self.sequences))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real length of each sequence."""
        return tuple(map(len, self.sequences))

    @property
    def padded(self) -> tuple[tuple[str, ...], ...]:
        """The sequences, filled up with `PAD`."""
        return tuple(tokens + (PAD,) * (self.length - len(tokens)) for tokens in self.sequences)


def tokenise(text: str, tokenizer: Tokenizer = "word", *, field: str = "text") -> TokenBatch:
    """Turn each non-empty line into a sequence of tokens.

    Args:
        text: any Unicode text; lines without a token are left out.
        tokenizer: "word", "char", "wordpiece" or "bpe".
        field: the field to name in an error.

    Raises:
        MhaError: no token at all, more than 100,000 characters or 512 lines, or the vocabulary is not installed.
    """
    if len(text) > MAX_CHARACTERS:
        shorter = Suggestion(((field, text[:10_000]),), "the first 10,000 characters")
        raise MhaError(field, f"{len(text):,} characters", f"at most {MAX_CHARACTERS:,} characters", [shorter])
    sequences = tuple(
        tuple(tokens) for line in text.splitlines() if line.strip() and (tokens := TOKENIZERS[tokenizer](line))
    )
    if not sequences:
        default = Suggestion(((field, DEFAULT_TEXT),), "the example sentence")
        raise MhaError(field, text, "at least one token", [default], problem=f"{field} has no token in it")
    if len(sequences) > MAX_LINES:
        shorter = Suggestion(((field, "\n".join(text.splitlines()[:64])),), "the first 64 lines")
        raise MhaError(field, f"{len(sequences):,} lines", f"at most {MAX_LINES} lines", [shorter])
    return TokenBatch(sequences)
