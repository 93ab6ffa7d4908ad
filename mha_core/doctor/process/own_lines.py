"""Which line of a stranger's code an exception or a dump of a dead process points to."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from mha_core.doctor.report import Place

_OURS = str(Path(__file__).resolve().parents[2])
_EXAMPLES = str(Path(__file__).resolve().parents[1] / "examples")  # pass for a person's
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.prefix})
_DUMPED = re.compile(r'^\s*File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,7}) in ', re.MULTILINE)


def is_own(file: str) -> bool:
    """Whether a file is a person's: not installed, not ours, not made up as "<string>" is."""
    return file.startswith(_EXAMPLES) or not file.startswith(("<", _OURS, *_INSTALLED))


def own_line(error: BaseException) -> Place | None:
    """Give the deepest frame of an exception in a person's file; of a syntax error the line that cannot be read."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return Place(Path(error.filename).name, error.lineno or 1, (error.text or "").strip())
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return _first_own(reversed(frames))


def dumped_line(dump: str) -> Place | None:
    """Give the deepest frame in a person's file from what `faulthandler` wrote, the current thread first."""
    current = dump.split("Current thread")[-1] if "Current thread" in dump else dump
    for part in (current, dump):
        place = _first_own((found["file"], int(found["line"])) for found in _DUMPED.finditer(part))
        if place is not None:
            return place
    return None


def _first_own(frames: Iterable[tuple[str, int]]) -> Place | None:
    for file, line in frames:
        if is_own(file):
            return Place(Path(file).name, line, linecache.getline(file, line).strip())
    return None
