"""Timing with a clock of the test's own: batches, quartiles, and what makes a number doubtful."""

from __future__ import annotations

import pytest

from mha_core.lenses import bench_timing
from mha_core.lenses.bench_timing import Stopwatch, Timing, doubts, summarise


class Clock:
    """Time that passes only when the timed call says so."""

    def __init__(self) -> None:
        self.now_s, self.calls = 100.0, 0

    def perf_counter(self) -> float:
        return self.now_s

    def call_taking(self, seconds: float) -> None:
        self.now_s += seconds
        self.calls += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bench_timing, "time", made)
    return made


def test_a_short_call_is_timed_in_batches(clock: Clock) -> None:
    watch = Stopwatch(lambda: clock.call_taking(1e-6))
    watch.visit(0.002)
    assert watch.calls_per_sample == 200
    assert watch.samples_s == pytest.approx([1e-6] * (len(watch.samples_s)))
    assert 9 <= len(watch.samples_s) <= 10  # ten samples of 0.2 ms, the first left out


def test_a_long_call_is_timed_once_a_visit(clock: Clock) -> None:
    watch = Stopwatch(lambda: clock.call_taking(2.0))
    watch.visit(0.5)
    watch.visit(0.5)
    assert watch.calls_per_sample == 1
    assert watch.samples_s == [2.0, 2.0]
    assert clock.calls == 3  # the first to see how long one takes


def test_the_first_sample_of_a_full_visit_does_not_count(clock: Clock) -> None:
    takes = iter([1.0, 7.0] + [1.0] * 20)
    watch = Stopwatch(lambda: clock.call_taking(next(takes)))
    watch.visit(11.5)
    assert watch.samples_s == [1.0] * 5


def test_median_and_quartiles_by_hand() -> None:
    read = summarise([0.001, 0.009, 0.003, 0.007, 0.005])
    assert (read.low_ms, read.median_ms, read.high_ms) == pytest.approx((3.0, 5.0, 7.0))
    assert read.runs == 5
    assert summarise([0.002]) == Timing(2.0, 2.0, 2.0, 1)


@pytest.mark.parametrize(
    ("timing", "kinds"),
    [
        (Timing(1.0, 0.95, 1.05, 40), []),
        (Timing(0.049, 0.048, 0.05, 40), ["too_short"]),
        (Timing(1.0, 0.9, 1.06, 40), ["noisy"]),
        (Timing(1.0, 0.9, 1.04, 40), []),
        (Timing(1.0, 0.5, 1.5, 4), ["too_short"]),
        (Timing(0.04, 0.03, 0.05, 40), ["too_short", "noisy"]),
    ],
)
def test_doubts(timing: Timing, kinds: list[str]) -> None:
    assert [warning.kind for warning in doubts(timing)] == kinds


def test_doubts_name_their_numbers() -> None:
    assert "20%" in doubts(Timing(1.0, 0.9, 1.1, 40))[0].sentence
    assert "Only 4 runs" in doubts(Timing(1.0, 0.9, 1.1, 4))[0].sentence
