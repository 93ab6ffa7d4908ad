"""The arithmetic of sizes: divisors, head counts near a wished one, how usual a width or a head count is, axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

USUAL_WIDTHS = (512, 768, 1024, 256, 128, 64, 4096, 2048, 384, 1536, 1280, 192, 320, 640, 3072, 5120, 8192)
USUAL_HEADS = (8, 12, 16, 4, 32, 2, 1, 6, 10, 20, 24, 40, 64, 3, 48, 14, 28, 96, 128)
USUAL_HEAD_DIMS = (64, 128, 32, 96, 80, 256, 16, 48, 40, 160, 192, 112, 72)


def divisors(number: int) -> tuple[int, ...]:
    """Give all divisors, smallest first."""
    small = [d for d in range(1, math.isqrt(max(number, 0)) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def near_heads(width: int, heads: int) -> tuple[int, ...]:
    """Give the divisors of the width on both sides of a head count that is none, the nearer one first."""
    below = [d for d in divisors(width) if d < heads][-1:]
    above = [d for d in divisors(width) if d > heads][:1]
    return tuple(sorted([*below, *above], key=lambda d: (abs(d - heads), d)))


def head_counts(width: int) -> str:
    """List the head counts that divide a width: "1, 2, 4, 8, 16, 32, 64, ..."."""
    found = divisors(width)
    shown = [str(d) for d in found[:8]]
    return ", ".join([*shown, "..."] if len(found) > 8 else shown)


def split_advice(width: int, heads: int) -> tuple[str, ...]:
    """Say which head counts, widths or free head size would work instead."""
    near = " or ".join(f"num_heads={h} (head_dim {width // h})" for h in near_heads(width, heads))
    below, above = width // heads * heads, (width // heads + 1) * heads
    size = max(1, width // heads)
    return (
        f"{near}; all head counts that divide {width}: {head_counts(width)}",
        f"embed_dim={above}" + (f" or {below}" if below else "") + f", which {heads} divides",
        (
            f"a head_dim of its own: q, k, v as nn.Linear({width}, {heads} * {size}), output as nn.Linear({heads} * "
            f"{size}, {width})"
        ),
    )


def usual(number: int, table: Sequence[int]) -> float:
    """Tell how usual a size is: 3 for the first of a table down to 1 for its last, 0 for any other."""
    return 3 - 2 * table.index(number) / (len(table) - 1) if number in table else 0.0


def roundness(width: int) -> float:
    """Tell how likely a number is a model's width: usual ones up to 3, then multiples of 64, 32, 8 and 2."""
    steps = ((64, 1.0), (32, 0.8), (8, 0.6), (2, 0.3))
    return usual(width, USUAL_WIDTHS) or next((score for step, score in steps if width % step == 0), 0.0)


def times(numbers: Sequence[int]) -> str:
    """Spell a product: "2 x 10 x 512"."""
    return " x ".join(map(str, numbers))


def power_of_two(number: int) -> bool:
    """Tell whether a number is 1, 2, 4, 8 ..."""
    return number > 0 and number & (number - 1) == 0


def plural(count: int, word: str) -> str:
    """Spell a count: "1 channel", "2 channels"."""
    return f"{count} {word}" + ("" if count == 1 else "s")
