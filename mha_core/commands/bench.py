"""`bench`: the engines side by side on one experiment: agreement, time, memory, and what the articles claim."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import torch

from mha_core.budget import spell_bytes
from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, add_experiment_options, experiment_from, print_json
from mha_core.config import require_int
from mha_core.errors import MhaError
from mha_core.lenses.bench_claims import Claim, answer
from mha_core.lenses.bench_reference import TOLERANCE_REASON
from mha_core.lenses.benchmark import DTYPES, PASSES, Measurement, Plan, latest, machine, measure

MAX_THREADS = 1024


def read_lengths(text: str | None) -> tuple[int | None, ...]:
    """Read lengths with commas; None is the experiment's own.

    Raises:
        MhaError: not whole numbers.
    """
    if text is None:
        return (None,)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise MhaError("lengths", text, "whole numbers with commas: 64,128,512")
    return tuple(sorted({int(word) for word in words}))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def collect(plan: Plan) -> tuple[Measurement, ...]:
    """Measure, with a line of progress where a person looks on.

    Raises:
        MhaError: nothing of it could be measured.
    """
    results: list[Measurement] = []
    for result in measure(plan):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {plan.total}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    rows = latest(results)
    if all(row.reason for row in rows):
        raise MhaError("lengths", "", "something that fits", problem=f"nothing can be measured: {rows[0].reason}")
    return rows


def print_table(rows: Sequence[Measurement]) -> None:
    """Write the measurements for a person, one block per size and pass."""
    for (q_len, k_len, pass_), block in groupby(rows, lambda row: (row.q_len, row.k_len, row.pass_)):
        print(f"\nSq={q_len} Sk={k_len} {pass_}")
        print(
            f"{'variant':<40} {'dtype':<9} {'median ms':>10} {'quartiles':>17} {'memory':>10} {'difference':>11} agrees"
        )
        for row in block:
            name = f"{row.variant.name:<40} {row.variant.dtype:<9}"
            if row.differences is None:
                print(f"{name} not measured: {row.reason}")
                continue
            time = row.timing
            times = f"{time.median_ms:>10.3f} {f'{time.low_ms:.3f}-{time.high_ms:.3f}':>17}" if time else " " * 28
            memory = "" if row.peak_extra_bytes is None else spell_bytes(row.peak_extra_bytes)
            print(f"{name} {times} {memory:>10} {row.differences.output:>11.1e} {'yes' if row.agrees else 'NO'}")


def print_words(rows: Sequence[Measurement], claims: Sequence[Claim]) -> None:
    """Write warnings, each once, and the verdicts."""
    warned = [warning for row in rows for warning in row.warnings]
    for sentence in dict.fromkeys(warning.sentence for warning in warned if warning.kind == "threads"):
        print(f"\n{sentence}")
    for kind in dict.fromkeys(warning.kind for warning in warned if warning.kind != "threads"):
        first = next(warning.sentence for warning in warned if warning.kind == kind)
        count = sum(any(warning.kind == kind for warning in row.warnings) for row in rows)
        print(f"\n{kind} ({count} of {len(rows)}): {first}")
    print()
    for claim in claims:
        print(f"{claim.verdict.upper()}: {claim.claim} {claim.sentence}")


def command(options: argparse.Namespace) -> int:
    """Measure the engines and describe them."""
    threads = torch.get_num_threads()
    experiment = experiment_from(options)
    seconds, lengths = _seconds(options.seconds), read_lengths(options.lengths)
    plan = Plan(experiment, lengths, _words(options.passes), _words(options.dtypes), seconds)
    try:
        if options.threads is not None:
            torch.set_num_threads(_threads(options.threads))
        rows, described = collect(plan), machine()
    finally:
        torch.set_num_threads(threads)
    claims = answer(rows)
    if options.json:
        answers = {"machine": described, "rows": [row.as_row() for row in rows]}
        print_json(answers | {"claims": [asdict(claim) for claim in claims], "tolerance": TOLERANCE_REASON})
    else:
        print(" ".join(f"{name}={value}" for name, value in described.items()))
        print_table(rows)
        print_words(rows, claims)
    return EXIT_FINDING if any(row.agrees is False for row in rows) else EXIT_FINE


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MhaError("seconds", text, "a number of seconds") from None


def _threads(text: str) -> int:
    count = int(text) if text.isdecimal() else 0
    require_int("threads", count, 1, MAX_THREADS)
    return count


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_experiment_options(parser)
    group = parser.add_argument_group("bench")
    group.add_argument("--lengths", metavar="N,N", help="values of Sq, with commas; default the experiment's own")
    group.add_argument("--passes", default="forward", help=f"any of {', '.join(PASSES)}; default forward")
    group.add_argument("--dtypes", default="float32,bfloat16,autocast", help=f"any of {', '.join(DTYPES)}")
    group.add_argument("--seconds", default="5", help="time for each length and pass; 0 only compares; default 5")
    group.add_argument("--threads", metavar="N", help="threads torch may use; default its own choice")
    parser.add_argument("--json", action="store_true", help="print JSON")
