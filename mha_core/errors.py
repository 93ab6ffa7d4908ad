"""The one exception a user can cause: what is wrong, what was needed, and what to change.

Holds no knowledge of attention. The sentence of an `MhaError` is shown as it is on the command line and in the
browser; each `Suggestion` carries the changes that a button applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

FieldValue = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True)
class Suggestion:
    """A change that repairs a mistake: field names of the experiment and the values to give them."""

    changes: tuple[tuple[str, FieldValue], ...]
    text: str = field(default="")

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", ", ".join(f"{name} {_spell(value)}" for name, value in self.changes))

    @classmethod
    def of(cls, text: str = "", /, **changes: FieldValue) -> Suggestion:
        """Write a suggestion as keyword arguments: `Suggestion.of(num_heads=8)`."""
        return cls(tuple(changes.items()), text)


class MhaError(ValueError):
    """A mistake in what the user gave.

    Attributes:
        field: name of the offending field, as in the configuration and on the command line.
        got: what was given.
        need: what would be accepted, in words.
        try_: suggestions that would work (`getattr(error, "try")` is the same tuple).
    """

    def __init__(
        self, field: str, got: object, need: str, try_: Iterable[Suggestion] = (), *, problem: str | None = None
    ) -> None:
        self.field = field
        self.got = got
        self.need = need
        self.try_ = tuple(try_)
        self.problem = problem or f"{field} is {_spell(got)}; it must be {need}"
        advice = _spell_suggestions(self.try_)
        super().__init__(f"{self.problem}. Try {advice}." if advice else f"{self.problem}.")
        setattr(self, "try", self.try_)  # `try` is a keyword, so it cannot be written as a plain attribute

    def as_dict(self) -> dict[str, object]:
        """Give the error as plain data with the keys field, got, need, try and message."""
        return {
            "field": self.field,
            "got": self.got if isinstance(self.got, str | int | float | bool | None) else repr(self.got),
            "need": self.need,
            "try": [suggestion.text for suggestion in self.try_],
            "message": str(self),
        }


def _spell(value: object) -> str:
    if isinstance(value, str):
        return f"{value[:60]!r}" if value == "" or len(value) > 40 or not value.isascii() else value
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)


def _spell_suggestions(suggestions: tuple[Suggestion, ...]) -> str:
    """Join suggestions, naming a field once: "num_heads 4 or 8, or embed_dim 511 or 518"."""
    by_field: dict[str, list[str]] = {}
    for suggestion in suggestions:
        name = suggestion.changes[0][0] if len(suggestion.changes) == 1 else ""
        if name and suggestion.text.startswith(f"{name} "):
            by_field.setdefault(name, []).append(suggestion.text.removeprefix(f"{name} "))
        else:
            by_field[suggestion.text] = []
    return ", or ".join(f"{name} {' or '.join(values)}" if values else name for name, values in by_field.items())
