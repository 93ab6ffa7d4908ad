"""Long work on a thread of its own: results in order, a stop between two steps, errors kept, generators closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ui.jobs import Job

LONG_S = 10


def finished(job: Job[int]) -> Job[int]:
    """Wait for the end of a job."""
    job._thread.join(LONG_S)
    assert not job.is_running
    return job


def test_all_results_come_in_order() -> None:
    job = finished(Job(iter([3, 5, 7]), 3, "primes"))
    assert (job.results, job.error, job.was_cancelled, job.about) == ([3, 5, 7], None, False, "primes")


def test_a_stop_is_heeded_between_two_steps_and_closes_the_work() -> None:
    may_go, closed = threading.Event(), threading.Event()

    def steps() -> Iterator[int]:
        try:
            yield 2
            assert may_go.wait(LONG_S)
            yield 3
            yield 5
        finally:
            closed.set()

    job = Job(steps(), 3, "")
    job.cancel()
    may_go.set()
    finished(job)
    assert job.was_cancelled
    assert len(job.results) < 3
    assert job.results == [2, 3, 5][: len(job.results)]
    assert closed.wait(LONG_S)


def test_an_error_ends_the_work_and_is_kept() -> None:
    def steps() -> Iterator[int]:
        yield 11
        raise ValueError("no more")

    job = finished(Job(steps(), 3, ""))
    assert job.results == [11]
    assert str(job.error) == "no more"
