"""Follow one child process: what it says becomes results; silence, crowds and sudden ends become deaths."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from mha_core.doctor.process.child_process import ChildProcess, Event
from mha_core.doctor.process.gathered import START_S, Death, Gathered
from mha_core.doctor.process.memory_limits import GIB
from mha_core.doctor.process.own_lines import dumped_line
from mha_core.doctor.report import CheckResult, Place
from mha_core.errors import MhaError, Suggestion

MAX_PROCESSES = 64


def _result(event: Event) -> CheckResult:
    return CheckResult(
        event["id"], event["status"], event["reason"], event["evidence"], event["cause"], _place(event["where"])
    )


def _place(given: Mapping[str, Any] | None) -> Place | None:
    return None if given is None else Place(**given)


def _ended(stage: str, child: ChildProcess) -> Death:
    code = child.exit_code or 0
    if stage == "start":  # before any foreign code: its last line says why
        last = child.said.decode(errors="replace").strip().rpartition("\n")[2]
        return Death(stage, last or f"exit code {code}")
    if code >= 0:
        return Death(stage, f"the process ended with exit code {code}", {"exit_code": code}, dumped_line(child.dump))
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    why = {"SIGSEGV": ", a read or write outside its memory", "SIGKILL": ", as when a system has no memory left"}
    reason = f"the process was ended by {name}{why.get(name, '')}"
    return Death(stage, reason, {"signal": name}, dumped_line(child.dump))


class Watch:
    """Where one child is, since when, and what became of it."""

    def __init__(self, gathered: Gathered) -> None:
        self.gathered, self.stage, self.is_done = gathered, "start", False
        self.death: Death | None = None
        self._since = time.monotonic()

    def take(self, event: Event) -> str | None:
        """Take an event in. Returns the stage that begins with it, if one does."""
        kind = event.get("event")
        if kind == "begin":
            self.stage, self._since = str(event["stage"]), time.monotonic()
            return self.stage
        if kind == "ready":
            self.gathered.unlimited = list(event["unlimited"])
        elif kind == "examined":
            self.gathered.module, self.gathered.assumed = event["module"], event["assumed"]
        elif kind == "result":
            self._take_result(event)
        elif kind == "refused":
            self._refuse(event["error"])
        elif kind == "died":
            self.death = self.death or Death(self.stage, event["reason"], {}, _place(event["where"]))
        self.is_done = self.is_done or kind == "done"
        return None

    def _take_result(self, event: Event) -> None:
        result = _result(event)
        if self.stage == "examine":
            self.death = Death(self.stage, result.reason, result.evidence, result.where)
        elif result.id == self.stage:
            self.gathered.results[result.id] = result

    def _refuse(self, error: Mapping[str, Any]) -> None:
        """End the check-up, if it is the first child; a later one has been accepted before."""
        if self.gathered.results:
            self.death = Death(self.stage, error["message"])
            return
        suggestions = [Suggestion((), text) for text in error["try"]]
        raise MhaError(error["field"], error["got"], error["need"], suggestions, problem=error["problem"])

    def judge(self, child: ChildProcess, ended: bool) -> Death | None:
        """Say how the child died, if it did, or whether it has to."""
        if ended:
            return _ended(self.stage, child)
        seconds = START_S if self.stage == "start" else self.gathered.options.seconds
        now = time.monotonic()
        if now - self._since > seconds or now > self.gathered.until:
            child.ask_where()
            limit = seconds if now - self._since > seconds else now - self._since
            verb = "it did not end" if self.stage in ("start", "import", "construct") else "the module did not return"
            reason = f"{verb} within {limit:.3g} s"
            return Death(self.stage, reason, {"limit_s": seconds}, dumped_line(child.dump))
        crowd = child.crowd()
        if crowd is None:
            return None
        count, held = crowd
        most = self.gathered.options.memory_gib + 1.0 if self.stage != "start" else float("inf")
        if count > MAX_PROCESSES:
            return Death(self.stage, f"it started {count} processes", {"processes": count})
        if count > 1 and held > most * GIB:
            reason = f"it and its {count - 1} processes held {held / GIB:.3g} GiB of memory"
            return Death(self.stage, reason, {"held_bytes": held})
        return None
