"""Long work on a thread of its own, with a progress bar and a cancel button, while the page goes on answering.

The work is an iterator that yields one result after another; a job takes them until the last one or until it is told to
stop. One job per name and session. Nothing here knows what is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import streamlit as st

from mha_core.errors import MhaError
from ui import compute, panels, state

POLL_S = 0.4
T = TypeVar("T")


class Job(Generic[T]):
    """Work that is being done.

    Args:
        steps: gives the results in order. total: how many there will be.
        about: what it is computed for; compared with what the page shows now.

    Attributes:
        results: those there are so far.
        error: what ended the work early, if anything.
    """

    def __init__(self, steps: Iterator[T], total: int, about: str) -> None:
        self.total, self.about = total, about
        self.results: list[T] = []
        self.error: Exception | None = None
        self._steps = steps
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                with compute.GATE:  # between two steps others get their turn
                    self.results.append(next(self._steps))
        except StopIteration:
            pass
        except Exception as error:  # shown on the page by `watch`: a thread has nobody else to tell
            self.error = error
        finally:
            if isinstance(self._steps, Generator):
                self._steps.close()  # lets go of what it holds, as work handed to an executor

    @property
    def is_running(self) -> bool:
        """Whether more results will come."""
        return self._thread.is_alive()

    @property
    def was_cancelled(self) -> bool:
        """Whether a person stopped it."""
        return self._stop.is_set()

    def cancel(self) -> None:
        """Stop after the step that is being done."""
        self._stop.set()


def start(name: str, steps: Iterator[T], total: int, about: str) -> None:
    """Begin a job, in place of an earlier one of the same name; for callbacks."""
    earlier: Job[T] | None = find(name)
    if earlier is not None:
        earlier.cancel()
    state.remember(f"job_{name}", Job(steps, total, about))


def find(name: str) -> Job[T] | None:
    """Give the job of that name, running or done."""
    job: Job[T] | None = state.recall(f"job_{name}", None)
    return job


def watch(name: str, draw: Callable[[Job[T]], None]) -> None:
    """Show a job's progress and what it has found so far, again and again until it is done."""
    job: Job[T] | None = find(name)
    if job is None:
        return

    def look() -> None:
        is_running = job.is_running
        if is_running:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.progress(len(job.results) / job.total, f"{len(job.results)} of {job.total}")
                st.button("Cancel", key=f"cancel_{name}", on_click=job.cancel, disabled=job.was_cancelled)
        elif job.was_cancelled:
            st.caption(f"Stopped after {len(job.results)} of {job.total}.")
        if isinstance(job.error, MhaError):
            st.error(panels.plain(f"{job.error}"))
        elif job.error is not None:
            raise job.error
        draw(job)
        if started_running and not is_running:
            st.rerun()  # once more without the clock

    started_running = job.is_running
    st.fragment(look, run_every=POLL_S if started_running else None)()
