"""The command line: `python -m mha_core COMMAND`. Options are the fields of an experiment, by their own names.

Exit codes: 0 fine, 1 a finding, 2 bad input, with one clear line and no traceback. Each command is a file of
`mha_core.commands`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from mha_core.commands import bench, cost, doctor, explain, gradients, inspect, run, trace
from mha_core.commands.options import EXIT_BAD_INPUT, EXIT_FINE
from mha_core.errors import MhaError

COMMANDS = {
    "run": (run, "text or random input to weights and a summary"),
    "trace": (trace, "the shape, memory and values of every tensor, also up to a failing step"),
    "cost": (cost, "what each step costs: FLOPs, bytes and formulas, for any length"),
    "bench": (bench, "the engines side by side: agreement, time and memory on this machine"),
    "gradients": (gradients, "one backward pass: norms per parameter, head and tensor, and verdicts with their reason"),
    "inspect": (inspect, "the attention layers of a checkpoint file: what follows, their numbers, what is odd"),
    "doctor": (doctor, "a check-up of anybody's attention module: leaks, scrambled heads, scales, gradients"),
    "explain": (explain, "an error text solved: which size does not fit, and what to change"),
}
_NUMBER_STARTS = (*"0123456789.", "inf")


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _Parser(prog="python -m mha_core", description="See, break and repair multi-head attention.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, help_) in COMMANDS.items():
        command_parser = commands.add_parser(name, help=help_)
        module.add(command_parser)
        command_parser.set_defaults(do=module.command)
    return parser


def join_values(arguments: Sequence[str]) -> list[str]:
    """Write `--fill -inf` as `--fill=-inf`: argparse would take a value that begins with "-" for an option."""
    joined: list[str] = []
    for argument in arguments:
        is_value = argument.startswith("-") and argument.removeprefix("-").lower().startswith(_NUMBER_STARTS)
        if is_value and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = build_parser().parse_args(join_values(sys.argv[1:] if arguments is None else arguments))
    try:
        code: int = options.do(options)
        sys.stdout.flush()
        return code
    except MhaError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader left, as `| head` does: nobody is there to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FINE
