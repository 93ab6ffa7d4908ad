"""What a trained model reads: text as its tokens, padded into a batch; for a vision model the text drawn as a picture.

The labels of the tokens are what people can read, special tokens included. A model whose folder has no tokenizer, as
one with random weights, gets a token number from each word.

Axes: B batch, S sequence.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from mha_core.errors import MhaError, Suggestion
from mha_core.sources.tokens import TokenBatch, words


@dataclass(frozen=True, eq=False)
class ModelInput:
    """One batch as a model takes it.

    Attributes:
        arguments: named tensors for the model.
        tokens: what its encoder, or the only stack, reads. second: what the decoder of a pair reads; else None.
    """

    arguments: Mapping[str, Tensor]
    tokens: TokenBatch
    second: TokenBatch | None = None


class Reader(Protocol):
    """Turns text into a model's input; `note` says what to know about it, if anything."""

    @property
    def note(self) -> str:
        """One sentence, or nothing."""

    def read(self, text: str, second: str | None) -> ModelInput:
        """Read texts, one sequence per line; the second is for the decoder of a pair."""

    def smallest(self) -> ModelInput:
        """Give some valid input, as small as can be."""


Encode = Callable[[str], list[int]]
Label = Callable[[int], str]


@dataclass(frozen=True)
class TextReader:
    """Reads text with a model's own tokenizer.

    Args:
        encode: one line to token numbers, special tokens included. label: a token number to what people can read.
        pad: token number of the filler. longest: most tokens the model has positions for.
        start: first token of a decoder that reads beside an encoder; None where there is no such pair.
        note: what to know about the tokens; "" when there is nothing.
    """

    encode: Encode
    label: Label
    pad: int
    longest: int
    start: int | None = None
    note: str = ""

    def read(self, text: str, second: str | None) -> ModelInput:
        """Read texts, one sequence per line.

        Raises:
            MhaError: field "text" or "memory_text"; no token, or more than the model has positions for.
        """
        ids = self._lines(text, "text")
        arguments, tokens = self._batch(ids)
        if self.start is None:
            return ModelInput(arguments, tokens)
        start = self.start
        answers = ids if second is None else self._lines(second, "memory_text")
        answers = answers * len(ids) if len(answers) == 1 else answers
        if len(answers) != len(ids):
            problem = f"text has {len(ids)} lines, but the decoder's text has {len(answers)}"
            raise MhaError("memory_text", len(answers), f"1 line or {len(ids)} lines", problem=problem)
        decoder, second_tokens = self._batch([[start, *line[:-1]] for line in answers])  # each token sees those before
        return ModelInput(arguments | {f"decoder_{k}": v for k, v in decoder.items()}, tokens, second_tokens)

    def smallest(self) -> ModelInput:
        """Give two tokens."""
        return self.from_ids([[0, 1]])

    def from_ids(self, ids: list[list[int]]) -> ModelInput:
        """Give a batch of token numbers as an input."""
        arguments, tokens = self._batch(ids)
        if self.start is None:
            return ModelInput(arguments, tokens)
        return ModelInput(arguments | {f"decoder_{k}": v for k, v in arguments.items()}, tokens, tokens)

    def _lines(self, text: str, field: str) -> list[list[int]]:
        ids = [self.encode(line) for line in text.splitlines() if line.strip()]
        if not ids or not all(ids):
            raise MhaError(field, text, "at least one token", problem=f"{field} has no token in it")
        longest = max(map(len, ids))
        if longest > self.longest:
            keep = self.longest / longest * 0.95
            shorter = "\n".join(line[: int(len(line) * keep)] for line in text.splitlines())
            problem = f"a line has {longest:,} tokens, but the model has positions for {self.longest:,}"
            try_ = [Suggestion(((field, shorter),), f"about the first {keep:.0%} of each line")]
            raise MhaError(field, longest, f"at most {self.longest:,} tokens", try_, problem=problem)
        return ids

    def _batch(self, ids: list[list[int]]) -> tuple[dict[str, Tensor], TokenBatch]:
        length = max(map(len, ids))
        padded = torch.tensor([line + [self.pad] * (length - len(line)) for line in ids])  # (B, S)
        real = torch.tensor([[1] * len(line) + [0] * (length - len(line)) for line in ids])  # (B, S)
        tokens = TokenBatch(tuple(tuple(map(self.label, line)) for line in ids))
        return {"input_ids": padded, "attention_mask": real}, tokens


@dataclass(frozen=True)
class PictureReader:
    """Reads text as a vision model would: drawn black on white, one picture per line; a token is a patch.

    Args:
        side, channels: size of a picture in pixels. patch: side of a patch. extra: tokens before the patches.
    """

    side: int
    channels: int
    patch: int
    extra: tuple[str, ...]
    note: str = "this model reads pictures: each line of the text is drawn as one, and a token is a patch (row,column)"

    def read(self, text: str, second: str | None) -> ModelInput:
        """Draw each line; the second text is not used."""
        pictures = [self._draw(line) for line in text.splitlines() if line.strip()]
        if not pictures:
            raise MhaError("text", text, "at least one line", problem="text has no line to draw")
        return self._input(torch.stack(pictures))

    def smallest(self) -> ModelInput:
        """Give an empty picture."""
        return self._input(torch.ones(1, self.channels, self.side, self.side))

    def _input(self, pictures: Tensor) -> ModelInput:
        patches = self.side // self.patch
        labels = self.extra + tuple(f"{row},{column}" for row in range(patches) for column in range(patches))
        return ModelInput({"pixel_values": pictures}, TokenBatch((labels,) * len(pictures)))

    def _draw(self, line: str) -> Tensor:
        picture = Image.new("L", (self.side, self.side), 255)
        pen, size = ImageDraw.Draw(picture), max(6.0, self.side / 6)
        font = ImageFont.load_default(size)
        across = max(1, int(self.side / (size * 0.55)))  # characters in a row
        rows = [line[first : first + across] for first in range(0, len(line), across)]
        pen.multiline_text((self.side * 0.04, self.side * 0.04), "\n".join(rows), 0, font)
        gray = torch.tensor(list(picture.tobytes()), dtype=torch.float32).view(self.side, self.side) / 127.5 - 1
        return gray.expand(self.channels, -1, -1)


def _count_positions(module: nn.Module) -> int:
    """Find the most tokens a model has positions for; RoBERTa and its kin number them from the filler's number on."""
    config: Any = module.config
    known = getattr(config, "max_position_embeddings", None) or 8192
    for name, table in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            known = min(known, table.num_embeddings - table.padding_idx - 1)
    return int(known)


def _find_tokenizer(place: str, options: Mapping[str, Any]) -> Any:
    """Load a model's tokenizer; None where it came without, for which transformers may give an empty one."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except (OSError, ValueError, KeyError):
        return None
    is_empty = len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2
    return None if is_empty else tokenizer


def reader_for(place: str, module: nn.Module, options: Mapping[str, Any]) -> Reader:
    """Choose how a model reads: by its pictures, its tokenizer, or, where it has none, numbers made of words."""
    config: Any = module.config
    if hasattr(config, "image_size") and hasattr(config, "patch_size"):
        extra = ("[CLS]", "[DIST]")[: 2 if "deit" in config.model_type else 1]
        return PictureReader(config.image_size, config.num_channels, config.patch_size, extra)
    longest = _count_positions(module)
    start = config.decoder_start_token_id if getattr(config, "is_encoder_decoder", False) else None
    start = 0 if start is None and getattr(config, "is_encoder_decoder", False) else start
    tokenizer = _find_tokenizer(place, options)
    if tokenizer is None:
        size = config.vocab_size
        note = "this model came without a tokenizer: each word is given a token number of its own"
        known: dict[int, str] = {}

        def encode(line: str) -> list[int]:
            ids = [zlib.crc32(word.encode()) % size for word in words(line)]
            known.update(zip(ids, words(line), strict=True))
            return ids

        return TextReader(encode, lambda number: known.get(number, f"#{number}"), 0, longest, start, note)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def spell(number: int) -> str:
        piece = str(tokenizer.convert_ids_to_tokens(number))
        if "▁" in piece or "##" in piece:
            return piece.replace("▁", "␣")
        readable = str(tokenizer.decode([number]))
        readable = piece if "\N{REPLACEMENT CHARACTER}" in readable else readable
        return readable.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or piece

    def encode_text(line: str) -> list[int]:
        return list(tokenizer(line, verbose=False)["input_ids"])

    return TextReader(encode_text, spell, pad, longest, start)
