"""The process in which foreign code runs: limits first, then import, construction, and one check after another.

Started by `child_process`. What it finds goes as JSON lines through a pipe of its own, each beginning
with a word that only the two processes know; what foreign code prints goes elsewhere and counts for nothing. A process
that foreign code forks off says nothing.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from mha_core.doctor.calls.failure import ModuleFailure, one_line
from mha_core.doctor.checkup import failed, perform
from mha_core.doctor.process.guesses import Wishes
from mha_core.doctor.process.load import Target, build, find
from mha_core.doctor.process.memory_limits import memory_sentence, set_limits
from mha_core.doctor.process.own_lines import own_line
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import examine
from mha_core.errors import MhaError

PR_SET_PDEATHSIG = 1


class Line:
    """The way to the parent."""

    def __init__(self, descriptor: int, word: str) -> None:
        self._descriptor, self._word, self._process = descriptor, word, os.getpid()

    def say(self, event: str, **what: Any) -> None:
        """Send one event."""
        if os.getpid() != self._process:
            os._exit(0)
        line = f"{self._word} {json.dumps({'event': event} | what)}\n".encode()
        while line:
            line = line[os.write(self._descriptor, line) :]


def main() -> NoReturn:
    """Do what the request on the standard input asks, then end at once."""
    results, dumps = (int(text) for text in sys.argv[1:3])
    request = json.load(sys.stdin)
    line = Line(results, request["word"])
    _settle(dumps)
    unlimited = set_limits(request["memory_gib"])
    _become_script(request)
    line.say("ready", unlimited=unlimited)
    try:
        _work(request, line)
        line.say("done")
    except MhaError as error:
        place = _raised_at(error)
        problem = f"{error.problem} ({place})" if place else error.problem
        if error.field == "kwargs" and (reason := _exhaustion(problem, request)):
            line.say("died", reason=reason, where=_place(own_line(error.__cause__ or error)))
        else:
            line.say("refused", error=error.as_dict() | {"problem": problem})
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: foreign code raised them
        line.say("died", reason=_last_words(error, request), where=_place(own_line(error)))
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # foreign code closed it
                continue
        os._exit(0)


def _settle(dumps: int) -> None:
    """Read nothing, die with the parent, and write down where the code is when the parent asks or a signal ends it."""
    torch.set_num_threads(1)  # probes are small: more threads take four times the CPU time, and longer when others work
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in (int(sys.argv[1]), dumps):
        os.set_inheritable(descriptor, False)
    faulthandler.enable(dumps)
    faulthandler.register(signal.SIGUSR1, dumps, all_threads=True)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_script(request: Mapping[str, Any]) -> None:
    """Look for modules where `python FILE.py` would, and hide our own arguments."""
    sys.dont_write_bytecode = True
    folder = str(Path(request["file"]).resolve().parent) if request["file"] else os.getcwd()
    sys.path[:] = [folder, *(place for place in sys.path[1:] if place)]  # the first was ours
    sys.argv = [request["file"] or ""]


def _work(request: Mapping[str, Any], line: Line) -> None:
    target = Target(Path(request["file"]) if request["file"] else None, request["module"], request["name"])
    declared = request["declared"]
    wishes = Wishes(**{name: declared[name] for name in declared if name != "call"})
    line.say("begin", stage="import")
    found = find(target)
    line.say("begin", stage="construct")
    loaded = build(found, target, wishes, request["kwargs"])
    line.say("begin", stage="examine")
    try:
        subject = examine(loaded.module, **declared)
    except ModuleFailure as failure:
        line.say("result", stage="examine", **_plain(failed("reach", failure)))
        return
    except MhaError as error:
        if not (reason := _exhaustion(error.problem, request)):
            raise
        line.say("died", reason=reason, where=_place(_raised_at(error)))
        return
    except Exception as error:
        if own_line(error) is not None:
            raise
        problem = f"the doctor could not examine {target}: {one_line(error)}"
        raise MhaError("doctor", str(target), "a module it understands", problem=problem) from error
    line.say("examined", module=subject.name, assumed=_words(subject.assumed) | {"constructor": loaded.constructor})
    for check_id in request["ids"]:
        line.say("begin", stage=check_id)
        line.say("result", stage=check_id, **_plain(_one(check_id, subject, request)))


def _one(check_id: Any, subject: Any, request: Mapping[str, Any]) -> CheckResult:
    result = perform(check_id, subject)
    exhausted = _exhaustion(result.reason, request) if result.status == "fail" else ""
    return replace(result, reason=exhausted) if exhausted else result


def _last_words(error: BaseException, request: Mapping[str, Any]) -> str:
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        return f"it called sys.exit({code!r})"
    return _exhaustion(one_line(error), request) or f"it raised {one_line(error)}"


def _exhaustion(text: str, request: Mapping[str, Any]) -> str:
    """Say that the module used up the memory or the stack, if what it raised means that; else ""."""
    endless = "it calls itself without end: RecursionError" if "RecursionError" in text else ""
    return endless or memory_sentence(text, request["memory_gib"])


def _raised_at(error: MhaError) -> Place | None:
    """Give the person's line that raised what made a call fail; an error of our own says its line itself."""
    cause = error.__cause__
    return own_line(cause.error) if isinstance(cause, ModuleFailure) and cause.error is not None else None


def _plain(result: CheckResult) -> dict[str, Any]:
    return result.as_dict() | {"where": _place(result.where)}


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else asdict(place)


def _words(assumed: Mapping[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = json.loads(json.dumps(dict(assumed), default=str))
    return words
