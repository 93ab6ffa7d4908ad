"""One row of a benchmark and how a table of them is printed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

WARM_UP = 3
SECONDS_PER_PAIR = 2.0
MIN_PAIRS, MAX_PAIRS = 9, 200


@dataclass(frozen=True)
class Row:
    """A measured figure beside its bar.

    Attributes:
        what: what was measured.
        value: the figure, a ratio unless the unit says otherwise.
        bar: the most it may be.
        unit: "x", "kB", "ms", "s" or "".
        detail: spread and absolute figures.
    """

    what: str
    value: float
    bar: float
    unit: str
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bar."""
        return self.value <= self.bar


def ratio(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, str]:
    """Time two functions in turn, A B A B ..., and compare pair by pair.

    Returns:
        The median ratio ours / peer, and the spread with both medians in milliseconds.
    """
    for _ in range(WARM_UP):
        ours(), peer()
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + SECONDS_PER_PAIR
    while len(pairs) < MIN_PAIRS or (time.perf_counter() < end and len(pairs) < MAX_PAIRS):
        pairs.append((_seconds(ours), _seconds(peer)))
    ratios = sorted(a / b for a, b in pairs)
    own, other = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return statistics.median(
        ratios
    ), f"{own:.2f} ms against {other:.2f} ms, quartiles {low:.2f}-{high:.2f}, n={len(pairs)}"


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def table(rows: Iterable[Row]) -> str:
    """Write rows as a Markdown table."""
    lines = ["| what | measured | bar | | detail |", "|---|---:|---:|---|---|"]
    for row in rows:
        verdict = "holds" if row.holds else "**missed**"
        lines.append(f"| {row.what} | {row.value:.3g} {row.unit} | {row.bar:g} {row.unit} | {verdict} | {row.detail} |")
    return "\n".join(lines)
