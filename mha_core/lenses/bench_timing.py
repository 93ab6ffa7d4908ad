"""Timing one call among others: visits in turn, batches where a call is too short for the clock, median and quartiles.

As hyperfine does, what makes a number doubtful is kept as data beside it. Nothing here knows what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MIN_SAMPLE_S = 2e-4  # shorter calls are timed in batches this long: the clock's own cost would show
MIN_RUNS = 5  # fewer give no quartiles to speak of
SHORT_MS = 0.05
NOISY = 0.15  # interquartile range over median


@dataclass(frozen=True)
class Warning:
    """Why a measurement should be read with care: a kind and one sentence."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Timing:
    """Median and quartiles of one call, in milliseconds, over `runs` samples."""

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int


@dataclass(eq=False)
class Stopwatch:
    """Collects the times of one call, visit by visit. The call has been made before: lazy set-up is not timed."""

    call: Callable[[], object]
    samples_s: list[float] = field(default_factory=list)
    calls_per_sample: int = 0

    def visit(self, slot_s: float) -> None:
        """Take samples until the slot is used up, at least one.

        Where several fit, the first of a visit is left out: the caches still hold what ran before.
        """
        if not self.calls_per_sample:
            self._calibrate()
        taken: list[float] = []
        end = time.perf_counter() + slot_s
        while not taken or time.perf_counter() < end:
            taken.append(self._sample())
        self.samples_s += taken[1:] if len(taken) > 3 else taken

    def _calibrate(self) -> None:
        """Make one call that does not count, and see how many of its kind fill a sample."""
        self.calls_per_sample = 1
        self.calls_per_sample = max(1, round(MIN_SAMPLE_S / self._sample()))

    def _sample(self) -> float:
        start = time.perf_counter()
        for _ in range(self.calls_per_sample):
            self.call()
        return (time.perf_counter() - start) / self.calls_per_sample

    def read(self) -> Timing:
        """Give what was measured so far."""
        return summarise(self.samples_s)


def summarise(samples_s: list[float]) -> Timing:
    """Take median and quartiles of samples in seconds; a single one is all three."""
    ms = [sample * 1e3 for sample in samples_s]
    low, median, high = statistics.quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else ms * 3
    return Timing(median, low, high, len(ms))


def doubts(timing: Timing) -> tuple[Warning, ...]:
    """Say what makes a timing doubtful: too short, too few, or noisy."""
    found: list[Warning] = []
    if timing.median_ms < SHORT_MS:
        found.append(
            Warning("too_short", f"Under {SHORT_MS * 1e3:.0f} µs: what is timed is mostly Python and the clock.")
        )
    if timing.runs < MIN_RUNS:
        few = f"Only {timing.runs} runs in the time given; {MIN_RUNS} are needed to trust a spread."
        found.append(Warning("too_short", few))
    elif timing.median_ms and (timing.high_ms - timing.low_ms) / timing.median_ms > NOISY:
        share = (timing.high_ms - timing.low_ms) / timing.median_ms
        found.append(Warning("noisy", f"The middle half of the runs spreads over {share:.0%} of the median."))
    return tuple(found)
