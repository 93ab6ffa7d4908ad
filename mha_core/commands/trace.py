"""`trace`: every tensor of one forward pass, in order; where the choices cannot run, up to the step that fails."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from mha_core.commands.options import (
    EXIT_BAD_INPUT,
    EXIT_FINDING,
    EXIT_FINE,
    add_experiment_options,
    fields_from,
    print_json,
)
from mha_core.lenses.broken_trace import trace_fields
from mha_core.lenses.trace import Trace


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_experiment_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def describe(trace: Trace) -> dict[str, Any]:
    """Give the steps, their statistics and the failure as plain data."""
    steps = []
    for step in trace.steps:
        statistics = trace.statistics(step.name)
        steps.append(asdict(step) | ({} if statistics is None else asdict(statistics)))
    failure = trace.failure
    failed = failure and {
        "step": failure.step,
        "operation": failure.operation,
        "torch_error": failure.torch_error,
        "error": failure.error.as_dict(),
    }
    return {"letters": dict(trace.letters), "steps": steps, "failure": failed}


def print_table(described: dict[str, Any]) -> None:
    """Write the steps for a person."""
    print(" ".join(f"{letter}={size}" for letter, size in described["letters"].items()))
    row = "{:<17}{:<40}{:<22}{:<20}{:<10}{:>13}  {:<9}{:<9}{:>10}{:>10}"
    print(row.format("step", "operation", "shape", "", "dtype", "bytes", "memory", "order", "mean", "std"))
    for step in described["steps"]:
        numbers = [f"{step[name]:.4g}" if name in step else "" for name in ("mean", "std")]
        shape = "(" + ", ".join(step["symbolic"]) + ")"
        order = "in order" if step["is_contiguous"] else "strided"
        what = step["operation"] + (f" (x {step['times']})" if step["times"] > 1 else "")
        sizes = " x ".join(map(str, step["shape"]))
        facts = (step["dtype"], f"{step['size_bytes']:,}", step["memory"], order)
        print(row.format(step["name"], what, shape, sizes, *facts, *numbers))


def command(options: argparse.Namespace) -> int:
    """Trace one experiment. A configuration that cannot run prints its steps, and the reason on standard error."""
    described = describe(trace_fields(fields_from(options)))
    print_json(described) if options.json else print_table(described)
    failure = described["failure"]
    if failure:
        sys.stdout.flush()
        said = " ".join((failure["torch_error"] or "nothing").split())
        print(
            f"error: {failure['error']['message']} It fails at {failure['step']}; torch says: {said}", file=sys.stderr
        )
        return EXIT_BAD_INPUT
    # A mask may fill hidden scores with -inf on purpose; anywhere else it is a finding, as NaN is.
    not_finite = any(s["nan_count"] or (s["inf_count"] and s["name"] != "masked") for s in described["steps"])
    return EXIT_FINDING if not_finite else EXIT_FINE
