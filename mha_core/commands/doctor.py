"""`doctor`: a check-up of anybody's attention module, in a process of its own with limits of time and memory.

Exit code 0 where nothing failed, 1 where something did, 2 where the check-up could not be run: then one line on the
standard error says why and the standard output stays empty, also with --json.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, print_json
from mha_core.doctor.calls.expression import CALL_NAMES
from mha_core.doctor.html_report import to_html
from mha_core.doctor.report import CHECK_IDS, CheckId, CheckResult, Report
from mha_core.doctor.report_groups import TITLES, groups, spell
from mha_core.errors import MhaError, Suggestion

MAX_SECONDS, MAX_GIB = 3600.0, 1024.0
LINE_WIDTH = 60
_EXAMPLES = """examples:
  doctor attention.py:MultiHeadAttention --causal
  doctor attention.py                              the one attention class of the file
  doctor attention.py:make_layer                   a function that gives a module, or an object of the file
  doctor torch.nn:MultiheadAttention --kwargs '{"embed_dim": 24, "num_heads": 3}'

exit code 0: nothing failed, 1: something failed, 2: could not be run (one line on the standard error, no output)

names that --call can use, as in --call 'module(x, mask=keep)':
"""


def _kwargs(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    need = """a JSON object, as '{"embed_dim": 24, "num_heads": 3}'"""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise MhaError("kwargs", text, need, problem=f"--kwargs is no JSON: {error}; it must be {need}") from error
    if not isinstance(given, dict):
        raise MhaError("kwargs", text, need)
    return given


def _number(option: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise MhaError(option, text, f"a number above 0, up to {most:g}")
    return value


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) < 7):
        raise MhaError(option, text, "a whole number from 1 to 999999")
    return int(text)


def _ids(text: str | None) -> tuple[CheckId, ...] | None:
    if text is None:
        return None
    asked = [part.strip().replace("-", "_") for part in text.split(",") if part.strip()]
    for part in asked or [text]:
        if part not in CHECK_IDS:
            near = difflib.get_close_matches(part, CHECK_IDS, 1)
            suggestions = [Suggestion((), f"--only {name}") for name in near]
            raise MhaError("only", part, "among " + ", ".join(CHECK_IDS), suggestions)
    return tuple(check_id for check_id in get_args(CheckId) if check_id in asked)


class Progress:
    """A line on the standard error for each check that begins; on a terminal one line that is written over."""

    def __init__(self) -> None:
        self._writes_over = sys.stderr.isatty()

    def __call__(self, stage: str) -> None:
        if self._writes_over:
            sys.stderr.write(f"\rchecking: {stage:<20}")
        elif stage in CHECK_IDS:  # what comes before may end in an error, which is then the only line
            sys.stderr.write(f"checking: {stage}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the one line back."""
        if self._writes_over:
            sys.stderr.write(f"\r{'':<{LINE_WIDTH}}\r")
            sys.stderr.flush()


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _told(names: str, check: CheckResult) -> list[str]:
    first = [f"  {names:<20} {check.reason}"] if len(names) <= 20 else [f"  {names}", f"  {'':<20} {check.reason}"]
    first += [f"  {'':<20} likely cause: {check.cause}"] if check.cause else []
    return first + ([f"  {'':<20} {check.where}"] if check.where else [])


def print_report(report: Report) -> None:
    """Write the report for a person, what matters most first."""
    print(_printable(report.module))
    for name, value in report.as_dict()["assumed"].items():
        print(_printable(f"  {name.replace('_', ' ')}: {spell(value)}"))
    for status, pairs in groups(report):
        print(f"\n{TITLES[status]}")
        for pair in pairs:
            print(*map(_printable, _told(*pair)), sep="\n")
    print(f"\nverdict: {report.verdict}")


def _save(report: Report, path: Path) -> None:
    try:
        path.write_text(to_html(report), encoding="utf-8")
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror}"
        raise MhaError("html", str(path), "a path that can be written", problem=problem) from error


def command(options: argparse.Namespace) -> int:
    """Check one module up. Warnings are told and do not count as a finding."""
    from mha_core.doctor.process.load import parse_target
    from mha_core.doctor.process.sandbox import Options, check_file

    target = parse_target(options.target)
    asked = Options(
        embed_dim=_size("embed_dim", options.embed_dim),
        num_heads=_size("num_heads", options.num_heads),
        num_kv_heads=_size("num_kv_heads", options.num_kv_heads),
        causal=options.causal,
        batch_first=options.batch_first,
        call=options.call,
        only=_ids(options.only),
        seconds=_number("seconds", options.seconds, MAX_SECONDS),
        memory_gib=_number("memory", options.memory, MAX_GIB),
    )
    progress = Progress()
    try:
        report = check_file(target.place, target.name, _kwargs(options.kwargs), asked, progress)
    finally:
        progress.end()
    if options.html is not None:
        _save(report, options.html)
    print_json(report.as_dict()) if options.json else print_report(report)
    return EXIT_FINDING if report.verdict == "fail" else EXIT_FINE


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    names = "\n".join(f"  {name:<13}{meaning}" for name, meaning in CALL_NAMES.items())
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EXAMPLES + names
    parser.add_argument("target", metavar="FILE.py:CLASS", help="also FILE.py, FILE.py:FUNCTION, package.module:CLASS")
    parser.add_argument("--kwargs", metavar="JSON", help="arguments of the constructor; what else it needs is guessed")
    flags = argparse.BooleanOptionalAction
    parser.add_argument("--causal", action=flags, help="token i must not see later tokens; default: read from the code")
    parser.add_argument(
        "--batch-first", action=flags, help="it takes (B, S, E), not (S, B, E); default: read from the code"
    )
    for name, help_ in (("embed-dim", "E"), ("num-heads", "H"), ("num-kv-heads", "Hkv")):
        parser.add_argument(f"--{name}", metavar=help_, help=f"{help_} of the module, where it cannot be read from it")
    parser.add_argument("--call", metavar="EXPR", help="how to call it; the names it can use are below")
    parser.add_argument("--only", metavar="IDS", help=f"checks to do, with commas: {', '.join(CHECK_IDS)}")
    parser.add_argument("--seconds", metavar="N", default="20", help="time limit of each check; default 20")
    parser.add_argument("--memory", metavar="GIB", default="4", help="memory limit; default 4 GiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="OUT.html", help="also write a page that stands alone")
