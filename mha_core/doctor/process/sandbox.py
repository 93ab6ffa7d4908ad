"""A check-up of foreign code in a process of its own, with limits of time and memory.

A module that hangs, ends the process or asks for too much memory has failed the check in which it does so; the others
go on in a new process. Guards against accidents, not against an attacker: the code runs with the person's own rights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from mha_core.doctor.process.child_process import ChildProcess
from mha_core.doctor.process.gathered import Death, Gathered, Options, bury
from mha_core.doctor.process.load import require_file
from mha_core.doctor.process.watching import Watch
from mha_core.doctor.report import Report

__all__ = ["Options", "check_file", "check_source", "steps"]
TICK_S, MAX_DEATHS = 0.1, 2
PASTED_NAME = "pasted.py"


def check_file(
    path: str | Path,
    target: str | None,
    kwargs: Mapping[str, Any] | None = None,
    options: Options | None = None,
    on_progress: Callable[[str], None] = lambda stage: None,
    cancel: Callable[[], bool] = lambda: False,
) -> Report:
    """Check a class, function or object of a file, or of an importable module, in a process of its own.

    Args:
        path: of the file, or "package.module". target: the name in it; None: its one attention class.
        kwargs: arguments of the constructor; those it needs besides are guessed.
        on_progress: called with "import", "construct", "examine" and the id of each check as they begin.
        cancel: asked about ten times a second; True leaves the checks that are pending unasked.

    Raises:
        MhaError: it could not be run: not found, not importable, not constructible, not callable.
    """
    return _drive(steps(path, target, kwargs, options), on_progress, cancel)


def check_source(
    text: str,
    target: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Options | None = None,
    on_progress: Callable[[str], None] = lambda stage: None,
    cancel: Callable[[], bool] = lambda: False,
) -> Report:
    """Check a class of a source text, as `check_file` does with a file; it runs in an empty folder.

    Raises:
        MhaError: as `check_file`.
    """
    with tempfile.TemporaryDirectory(prefix="mha-doctor-") as folder:
        path = Path(folder) / PASTED_NAME
        path.write_text(text, encoding="utf-8")
        return _drive(steps(path, target, kwargs, options, Path(folder)), on_progress, cancel)


Steps = Generator[str | None, None, Report]


def _drive(work: Steps, on_progress: Callable[[str], None], cancel: Callable[[], bool]) -> Report:
    try:
        stage = next(work)
        while True:
            if stage is not None:
                on_progress(stage)
            stage = work.throw(_Cancelled()) if cancel() else next(work)
    except StopIteration as end:
        report: Report = end.value
        return report
    finally:
        work.close()


class _Cancelled(Exception):  # noqa: N818 (no error)
    """A person stopped the check-up."""


def steps(
    path: str | Path,
    target: str | None,
    kwargs: Mapping[str, Any] | None = None,
    options: Options | None = None,
    cwd: Path | None = None,
) -> Steps:
    """Do a check-up step by step: yields what begins, or None while nothing new does; returns the report.

    Closing it ends the child at once. Arguments and errors are those of `check_file`; cwd is the folder to run in.
    """
    options = options or Options()
    is_file = isinstance(path, Path) or path.endswith(".py") or "/" in path
    shown = f"{Path(path).name if is_file else path}" + (f":{target}" if target else "")
    if is_file:
        require_file(Path(path))
    gathered = Gathered(shown, options)
    place = {"file": str(path) if is_file else None, "module": None if is_file else str(path), "name": target}
    request = place | {"kwargs": dict(kwargs or {}), "declared": options.declared(), "memory_gib": options.memory_gib}
    try:
        for deaths in range(MAX_DEATHS + 1):
            if deaths == MAX_DEATHS:
                gathered.skip(f"{MAX_DEATHS} checks ended their process")
            if not gathered.pending:
                break
            death = yield from _one_child(request | {"ids": gathered.pending}, gathered, cwd)
            if death is not None:
                bury(death, gathered)
    except _Cancelled:
        gathered.skip("the check-up was stopped")
    return gathered.report()


def _one_child(
    request: Mapping[str, Any], gathered: Gathered, cwd: Path | None
) -> Generator[str | None, None, Death | None]:
    """Listen to one child until it is done or dead."""
    child = ChildProcess(request, cwd)
    watch = Watch(gathered)
    try:
        while True:
            ended = child.exit_code is not None
            events = child.rest() if ended else child.wait(TICK_S)
            for event in events:
                yield watch.take(event)
            death = watch.death or (None if watch.is_done else watch.judge(child, ended))
            if watch.is_done or death is not None:
                return death
            if not events:
                yield None
    finally:
        gathered.printed_bytes += child.printed_bytes
        child.kill()
