"""`explain`: an error text to what happened, with its numbers solved.

Exits with 0 where the text is known, with 1 where it is not, with 2 on bad input.
"""

from __future__ import annotations

import argparse
import sys

from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, print_json
from mha_core.doctor.explain import SIZES, Explanation, explain
from mha_core.errors import MhaError


def print_explanation(found: Explanation) -> None:
    """Write the explanation for a person."""
    if found.kind:
        print(f"{found.kind}{'' if found.known else ' (nearest kind; the text is not known)'}")
    print(found.explanation)
    for change in found.try_:
        print(f"  try: {change}")


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    """Read the sizes that were given.

    Raises:
        MhaError: one is not a whole number of at least 1.
    """
    given = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    for name, text in given.items():
        if not text.isdecimal() or int(text) < 1:
            raise MhaError(name, text, "a whole number, at least 1")
    return {name: int(text) for name, text in given.items()}


def command(options: argparse.Namespace) -> int:
    """Explain one text."""
    sizes = _sizes(options)
    text = sys.stdin.buffer.read().decode(errors="replace") if options.text == "-" else options.text
    if not text.strip():
        raise MhaError("text", text, "an error text", problem="there is no text to explain")
    found = explain(text, sizes)
    if options.json:
        answer = {"known": found.known, "kind": found.kind, "explanation": found.explanation, "try": list(found.try_)}
        print_json(answer)
    else:
        print_explanation(found)
    return EXIT_FINE if found.known else EXIT_FINDING


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = "Exit code 0: the text is known; 1: it is not; 2: bad input."
    parser.add_argument(
        "text", metavar="TEXT", help='the error text or a whole traceback; "-" reads it from standard input'
    )
    for name in SIZES:
        parser.add_argument(
            "--" + name.replace("_", "-"), dest=name, metavar="N", help="what is known, to decide between readings"
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
