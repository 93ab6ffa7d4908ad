"""What every reader of checkpoints shares: the record of a tensor, the limit on sizes, and how a file is refused.

A sentence about a file names the file only, never its folder, and is short whatever the file is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from mha_core.budget import limit_bytes, spell_bytes
from mha_core.errors import MhaError

DEFAULT_BUDGET_BYTES = 4 * 2**30
MAX_NAME = 512  # characters of a tensor's name; published models stay under 150
MAX_AXES = 32
MAX_TENSORS = 200_000
MAX_SENTENCE = 320

Format = Literal["safetensors", "torch"]


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint.

    Attributes:
        shape: its axes. dtype: torch's name of the number format, as "float32". size_bytes: of its numbers.
    """

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True)
class Contents:
    """What one file holds: its tensors, how to read one by its name, and what else is to be said."""

    format: Format
    tensors: Mapping[str, TensorInfo]
    read: Callable[[str], Tensor]
    notes: tuple[str, ...] = ()


def clean(text: str, length: int = 80) -> str:
    """Make a text fit into a sentence: one line, printable, its middle left out where it is longer than `length`."""
    printable = "".join(character if character.isprintable() else "?" for character in text[: 4 * length])
    if len(text) <= length:
        return printable
    return printable[: length - 16] + "…" + "".join(c if c.isprintable() else "?" for c in text[-14:])


def refuse(file: Path | str, sentence: str, need: str = "a checkpoint that can be read") -> MhaError:
    """Make the error for a file: its name and the rest of the sentence."""
    name = clean(Path(file).name or "this checkpoint")
    problem = f"{name} {sentence}"
    return MhaError("checkpoint", name, need, problem=clean(problem, MAX_SENTENCE))


def checkpoint_budget() -> int:
    """Give the largest size of a file or tensor that is read into memory: 4 GiB, or MHA_LAB_CHECKPOINT_BUDGET.

    Raises:
        MhaError: the variable is not a number.
    """
    return limit_bytes("MHA_LAB_CHECKPOINT_BUDGET", DEFAULT_BUDGET_BYTES)


def check_size(file: Path | str, what: str, size_bytes: int) -> None:
    """Refuse what would take more than the limit.

    Raises:
        MhaError: field "checkpoint", with the bytes.
    """
    limit = checkpoint_budget()
    if size_bytes > limit:
        limits = f"{spell_bytes(limit)} that MHA_LAB_CHECKPOINT_BUDGET allows"
        raise refuse(file, f"{what} {spell_bytes(size_bytes)}, more than the {limits}")


def name_problem(name: str, shape: tuple[int, ...]) -> str:
    """Say why a tensor cannot be listed; "" where it can."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return f"name empty, longer than {MAX_NAME} characters or not printable"
    return f"more than {MAX_AXES} axes" if len(shape) > MAX_AXES else ""


def say_left_out(reasons: Iterable[str]) -> tuple[str, ...]:
    """Count tensors that are not listed, one note per reason."""
    return tuple(f"tensors left out: {count:,} ({reason})" for reason, count in Counter(reasons).items())
