"""The parent's side of the process in which foreign code runs: start, listen without ever being kept waiting, kill.

Holds no knowledge of checks. The child is the leader of a process group of its own, and the whole group ends with it.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from mha_core.doctor.process.child import main; main()"
CHUNK_BYTES, KEPT_BYTES, MAX_LINE_BYTES = 1 << 16, 1 << 14, 1 << 22
COUNT_EVERY_S, MAX_PROCESSES, DUMP_WITHIN_S = 0.5, 64, 0.5
Event = dict[str, Any]


class ChildProcess:
    """A child that has been asked.

    Args:
        request: what it is to do; must be JSON data.
        cwd: the folder it runs in; None: this process's own.

    Attributes:
        printed_bytes: how much foreign code printed so far. said: the end of it.
    """

    def __init__(self, request: Mapping[str, Any], cwd: Path | None = None) -> None:
        self._word = secrets.token_hex(8)
        self.printed_bytes, self.said, self._dump = 0, b"", b""
        self._unread, self._counted_at = b"", time.monotonic()
        results, child_results = os.pipe()
        dumps, child_dumps = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(child_results), str(child_dumps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(child_results, child_dumps),
                start_new_session=True,
                cwd=cwd,
            )
        except BaseException:
            os.close(results)
            os.close(dumps)
            raise
        finally:
            os.close(child_results)
            os.close(child_dumps)
        self._own = (results, dumps)
        self._listen(results, dumps)
        self._ask(dict(request) | {"word": self._word})

    def _listen(self, results: int, dumps: int) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        printed = (self._process.stdout.fileno(), self._process.stderr.fileno())
        self._selector = selectors.DefaultSelector()
        for descriptor, name in ((results, "results"), (dumps, "dump"), *((p, "printed") for p in printed)):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _ask(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(request).encode())

    def wait(self, seconds: float) -> list[Event]:
        """Give the events that come within that time, as soon as there are any."""
        events: list[Event] = []
        for key, _ in self._selector.select(seconds):
            events += self._read(key.fd, key.data)
        return events

    def _read(self, descriptor: int, name: str) -> list[Event]:
        try:
            got = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return []
        if not got:
            self._selector.unregister(descriptor)
        elif name == "printed":
            self.printed_bytes += len(got)
            self.said = (self.said + got)[-KEPT_BYTES:]
        elif name == "dump":
            self._dump = (self._dump + got)[-KEPT_BYTES:]
        else:
            return self._events(got)
        return []

    def _events(self, got: bytes) -> list[Event]:
        *lines, self._unread = (self._unread + got).split(b"\n")
        self._unread = self._unread[-MAX_LINE_BYTES:]
        found = []
        for line in lines:
            word, _, text = line.partition(b" ")
            if word == self._word.encode():
                with suppress(ValueError):
                    found.append(json.loads(text))
        return found

    @property
    def exit_code(self) -> int | None:
        """How it ended, a signal as a negative number; None while it runs."""
        return self._process.poll()

    @property
    def dump(self) -> str:
        """Where the code was when it was asked or a signal ended it, as `faulthandler` writes it."""
        return self._dump.decode(errors="replace")

    def rest(self) -> list[Event]:
        """Give the events that an ended child has left, without waiting for anybody else who holds its pipes."""
        events: list[Event] = []
        for _ in range(MAX_LINE_BYTES // CHUNK_BYTES):
            ready = self._selector.select(0)
            if not ready:
                break
            for key, _ in ready:
                events += self._read(key.fd, key.data)
        return events

    def crowd(self) -> tuple[int, int] | None:
        """Count the processes of its group and the bytes they hold, now and then; None when it was not time yet."""
        if time.monotonic() - self._counted_at < COUNT_EVERY_S or not Path("/proc/self/stat").exists():
            return None
        self._counted_at = time.monotonic()
        count, pages = 0, 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError, IndexError, ValueError):
                    group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
                    if group == self._process.pid:
                        pages += int((folder / "statm").read_text().split()[1])
                        count += 1
        return count, pages * os.sysconf("SC_PAGE_SIZE")

    def ask_where(self) -> None:
        """Let a hanging child write down where it is, for a moment."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + DUMP_WITHIN_S
        while time.monotonic() < until and b"most recent call first" not in self._dump:
            self.wait(0.05)
        time.sleep(0.1)  # it writes line by line
        self.rest()

    def kill(self) -> None:
        """End the child and every process of its group, and let go of all pipes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for descriptor in self._own:
            os.close(descriptor)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
