"""The attention layer as numbers: `AttentionConfig`, checked before any tensor exists.

Holds every rule about sizes (who must divide whom) and the arithmetic behind its advice. It does not hold masks,
initial values or inputs: those have records of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from mha_core.errors import FieldValue, MhaError, Suggestion

Projection = Literal["separate", "fused"]
QkvLayout = Literal["stacked", "interleaved"]
HeadSplit = Literal["view", "einops"]
Kernel = Literal["explicit", "chunked", "sdpa"]

MAX_EMBED_DIM = 16_384
MAX_HEADS = 1_024
DEFAULT_ROPE_THETA = 10_000.0  # Su et al. 2021, RoFormer, section 3.2.2


def require_int(name: str, value: object, minimum: int, maximum: int) -> None:
    """Raise MhaError unless `value` is an int (not a bool) with minimum <= value <= maximum."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        nearest = min(max(value, minimum), maximum) if isinstance(value, int | float) and value == value else minimum
        suggestion = Suggestion(((name, int(nearest)),))
        raise MhaError(name, value, f"a whole number from {minimum} to {maximum}", [suggestion])


def require_number(name: str, value: object, minimum: float, maximum: float) -> None:
    """Raise MhaError unless `value` is a finite number with minimum <= value <= maximum."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:  # type: ignore[operator]  # is_number guards it
        raise MhaError(name, value, f"a number from {minimum:g} to {maximum:g}")


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise MhaError unless `value` is one of `choices`."""
    if value not in choices:
        raise MhaError(name, value, "one of " + ", ".join(choices), [Suggestion(((name, choices[0]),))])


def require_names(name: str, value: object, choices: Sequence[str]) -> tuple[str, ...]:
    """Read a subset of `choices`, from a sequence of words or one text with commas; gives it in their order.

    Raises:
        MhaError: not words, or a word that is not one of them.
    """
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise MhaError(name, value, "any of " + ", ".join(choices))
    for word in words:
        require_choice(name, word, choices)
    return tuple(choice for choice in choices if choice in words)


def nearest_divisors(number: int, near: int) -> list[int]:
    """Give the divisors of `number` next below and next above `near` (one of them where there is no other)."""
    divisors = [d for d in range(1, min(number, MAX_HEADS) + 1) if number % d == 0]
    below = [d for d in divisors if d < near][-1:]
    above = [d for d in divisors if d > near][:1]
    return below + above


def nearest_multiples(number: int, of: int) -> list[int]:
    """Give the multiples of `of` next below and next above `number`, positive ones only."""
    below = number // of * of
    return [multiple for multiple in (below, below + of) if 0 < multiple <= MAX_EMBED_DIM]


@dataclass(frozen=True)
class AttentionConfig:
    """The numbers and choices of one multi-head attention layer.

    Args:
        embed_dim: width E of query input and output.
        num_heads: number of query heads H; must divide embed_dim, unless head_size is given.
        num_kv_heads: number of key/value heads Hkv; must divide num_heads. None means H (no grouping), 1 is
            multi-query (Shazeer 2019), anything between is grouped-query attention (Ainslie et al. 2023).
        head_size: width D of one head where it is not E / H (LLaMA's head_dim, T5's d_kv); None means E / H.
        bias: whether the four projections add a bias.
        kdim, vdim: widths of the key and value inputs; None means embed_dim.
        dropout: probability, in [0, 1), that a weight is dropped in training.
        projection: three matrices for q, k, v ("separate") or one ("fused").
        qkv_layout: order inside the fused matrix: [q | k | v] ("stacked") or, per key/value head, its query heads,
            then k, then v ("interleaved").
        head_split: `view` + `permute`, or `einops.rearrange`.
        kernel: "explicit" (the equation), "chunked" over queries, or torch's fused "sdpa" (gives no weights).
        scale: factor on q·k; None means 1/sqrt(head_dim) (Vaswani et al. 2017, section 3.2.1).
        rope_theta: base of rotary positions (Su et al. 2021); None means no rotation. Needs an even head_dim.

    Raises:
        MhaError: a value is out of range, or the sizes do not fit one another.
    """

    embed_dim: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    head_size: int | None = None
    bias: bool = True
    kdim: int | None = None
    vdim: int | None = None
    dropout: float = 0.0
    projection: Projection = "separate"
    qkv_layout: QkvLayout = "stacked"
    head_split: HeadSplit = "view"
    kernel: Kernel = "explicit"
    scale: float | None = None
    rope_theta: float | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_heads()
        self._check_rotary()
        self._check_fused()

    @property
    def head_dim(self) -> int:
        """Width D of one head."""
        return self.embed_dim // self.num_heads if self.head_size is None else self.head_size

    @property
    def joined_dim(self) -> int:
        """Width H·D of the heads side by side; E, unless head_size says otherwise."""
        return self.num_heads * self.head_dim

    @property
    def kv_heads(self) -> int:
        """Number Hkv of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def key_dim(self) -> int:
        """Width of the key input."""
        return self.embed_dim if self.kdim is None else self.kdim

    @property
    def value_dim(self) -> int:
        """Width of the value input."""
        return self.embed_dim if self.vdim is None else self.vdim

    @property
    def softmax_scale(self) -> float:
        """The factor on q·k."""
        return 1.0 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    def _check_values(self) -> None:
        require_int("embed_dim", self.embed_dim, 1, MAX_EMBED_DIM)
        require_int("num_heads", self.num_heads, 1, MAX_HEADS)
        if self.num_kv_heads is not None:
            require_int("num_kv_heads", self.num_kv_heads, 1, MAX_HEADS)
        for name, width in (("head_size", self.head_size), ("kdim", self.kdim), ("vdim", self.vdim)):
            if width is not None:
                require_int(name, width, 1, MAX_EMBED_DIM)
        if not isinstance(self.bias, bool):
            raise MhaError("bias", self.bias, "true or false", [Suggestion.of(bias=True)])
        require_number("dropout", self.dropout, 0.0, 0.99)
        if self.scale is not None:
            require_number("scale", self.scale, -1e6, 1e6)
        if self.rope_theta is not None:
            require_number("rope_theta", self.rope_theta, 1.0, 1e9)
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)

    def _check_heads(self) -> None:
        quotient, remainder = divmod(self.embed_dim, self.num_heads)
        if remainder and self.head_size is None:
            sum_ = f"{self.embed_dim} = {self.num_heads} x {quotient} + {remainder}"
            raise MhaError(
                "num_heads",
                self.num_heads,
                f"a divisor of embed_dim {self.embed_dim}",
                self._fitting_heads() + self._fitting_widths() + [self._untied()],
                problem=f"embed_dim {self.embed_dim} is not divisible by num_heads {self.num_heads} ({sum_})",
            )
        if self.num_heads % self.kv_heads:
            quotient, remainder = divmod(self.num_heads, self.kv_heads)
            sum_ = f"{self.num_heads} = {self.kv_heads} x {quotient} + {remainder}"
            raise MhaError(
                "num_kv_heads",
                self.kv_heads,
                f"a divisor of num_heads {self.num_heads}",
                [Suggestion.of(num_kv_heads=n) for n in nearest_divisors(self.num_heads, self.kv_heads)],
                problem=f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.kv_heads} ({sum_}), "
                "so the query heads cannot share key/value heads evenly",
            )

    @property
    def _channels_per_turn(self) -> int:
        """Rotary positions turn pairs of channels."""
        return 1 if self.rope_theta is None else 2

    def _fitting_heads(self) -> list[Suggestion]:
        """The nearest numbers of heads that the other fields allow."""
        if self.embed_dim % self._channels_per_turn:
            return []
        heads = nearest_divisors(self.embed_dim // self._channels_per_turn, self.num_heads)
        grouped = self.num_kv_heads is not None
        ungroup: dict[str, FieldValue] = {"num_kv_heads": None}
        return [Suggestion.of(num_heads=n, **(ungroup if grouped and n % self.kv_heads else {})) for n in heads]

    def _fitting_widths(self) -> list[Suggestion]:
        """The nearest widths that the other fields allow."""
        if self.projection == "fused" and (self.kdim, self.vdim) != (None, None):
            return []
        widths = nearest_multiples(self.embed_dim, self.num_heads * self._channels_per_turn)
        ungroup: dict[str, FieldValue] = {"num_kv_heads": None} if self.num_heads % self.kv_heads else {}
        return [Suggestion.of(embed_dim=width, **ungroup) for width in widths]

    def _untied(self) -> Suggestion:
        """Heads of a width of their own, about as wide as they would be."""
        width = max(self._channels_per_turn, self.head_dim // self._channels_per_turn * self._channels_per_turn)
        if self.num_heads % self.kv_heads:
            return Suggestion.of(f"untie it: head_size {width}, num_kv_heads none", head_size=width, num_kv_heads=None)
        return Suggestion.of(f"untie it: head_size {width}", head_size=width)

    def _check_rotary(self) -> None:
        if self.rope_theta is None or self.head_dim % 2 == 0:
            return
        unturned = Suggestion.of("no rotary positions", rope_theta=None, positions="none")
        if self.head_size is not None:
            raise MhaError(
                "head_size",
                self.head_size,
                "even where positions are rotary",
                [*(Suggestion.of(head_size=size) for size in nearest_multiples(self.head_size, 2)), unturned],
                problem=f"rotary positions turn pairs of channels, but head_size is {self.head_size}, an odd number",
            )
        raise MhaError(
            "rope_theta",
            self.rope_theta,
            "used with an even head_dim",
            [*self._fitting_widths(), unturned],
            problem=f"rotary positions turn pairs of channels, but head_dim is {self.head_dim} "
            f"(embed_dim {self.embed_dim} / num_heads {self.num_heads}), an odd number",
        )

    def _check_fused(self) -> None:
        if self.projection == "fused" and (self.key_dim, self.value_dim) != (self.embed_dim, self.embed_dim):
            raise MhaError(
                "projection",
                self.projection,
                "separate when kdim or vdim differ from embed_dim",
                [
                    Suggestion.of(projection="separate"),
                    Suggestion.of("kdim and vdim = embed_dim", kdim=None, vdim=None),
                ],
                problem=f"one fused matrix needs one input width, but embed_dim is {self.embed_dim}, "
                f"kdim {self.key_dim} and vdim {self.value_dim}",
            )


CHOICES: dict[str, tuple[str, ...]] = {
    "projection": get_args(Projection),
    "qkv_layout": get_args(QkvLayout),
    "head_split": get_args(HeadSplit),
    "kernel": get_args(Kernel),
}
CONFIG_FIELDS = tuple(field.name for field in fields(AttentionConfig))
