"""The command line: `python -m mha_core COMMAND`. Options are the fields of an experiment, by their own names.

Exit codes: 0 fine, 1 a finding, 2 bad input, with one clear line and no traceback.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mha_core.errors import FieldValue, MhaError
from mha_core.experiment import Experiment, Run, run
from mha_core.fields import FIELDS, Field
from mha_core.lenses.cost import matmul_flops, parameter_count
from mha_core.lenses.findings import find
from mha_core.lenses.head_stats import head_stats

EXIT_FINE, EXIT_FINDING, EXIT_BAD_INPUT = 0, 1, 2
_NUMBER_STARTS = (*"0123456789.", "inf")
ALARMING = ("empty_rows", "not_finite", "fill_clamped")  # findings that make `run` exit with 1


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}\n")


def add_experiment_options(parser: argparse.ArgumentParser) -> None:
    """Add one option per field of an experiment."""
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(f.group for f in FIELDS.values())}
    for field in FIELDS.values():
        choices = f" ({', '.join(field.choices)})" if field.choices else ""
        help_ = f"{field.help}{choices}; default {field.write(field.default)}"
        option = "--" + field.name.replace("_", "-")
        groups[field.group].add_argument(
            option, dest=field.name, metavar=field.kind.upper(), help=help_.replace("%", "%%")
        )


def experiment_from(options: argparse.Namespace) -> Experiment:
    """Build the experiment that the options describe; sizes of a random input imply `--source random`.

    Raises:
        MhaError: a value is bad, or values contradict one another.
    """
    given = {name: getattr(options, name) for name in FIELDS if getattr(options, name) is not None}
    values: dict[str, FieldValue] = {name: _read(FIELDS[name], text) for name, text in given.items()}
    if "source" not in values and "text" not in values and {"batch", "q_len", "k_len", "distribution"} & set(values):
        values["source"] = "random"
    return Experiment.from_fields(values)


def _read(field: Field, text: str) -> FieldValue:
    """Read an option; a text is taken as it is typed, never as a packed link."""
    return text if field.kind == "text" else field.read(text)


def summarise(result: Run) -> dict[str, Any]:
    """Give what `run` prints: sizes, cost, per-head numbers and findings of every sequence, as plain data."""
    sizes, config = result.sizes, result.experiment.attention
    row_sums = result.weights.sum(-1).double()
    return {
        "experiment": result.experiment.to_fields(),
        "sizes": {"B": sizes.batch, "Sq": sizes.q_len, "Sk": sizes.k_len, "E": config.embed_dim, "H": config.num_heads}
        | {"Hkv": config.kv_heads, "D": config.head_dim},
        "tokens": [list(line) for line in sizes.q_tokens.padded],
        "memory_tokens": [list(line) for line in sizes.k_tokens.padded] if sizes.is_cross else None,
        "parameters": parameter_count(config),
        "matmul_flops": matmul_flops(config, sizes.batch, sizes.q_len, sizes.k_len),
        "forward_ms": result.forward_ms,
        "row_sum": {"min": row_sums.min().item(), "max": row_sums.max().item()},
        "output": {"shape": list(result.output.shape), "std": result.output.double().std(correction=0).item()},
        "heads": [[asdict(stats) for stats in head_stats(result, sample)] for sample in range(sizes.batch)],
        "findings": [{"sequence": b} | asdict(finding) for b in range(sizes.batch) for finding in find(result, b)],
    }


def save_npz(result: Run, path: Path) -> None:
    """Write tokens (B, Sq), memory_tokens (B, Sk), weights (B, H, Sq, Sk), output (B, Sq, E) and the experiment."""
    double = result.experiment.dtype == "float64"
    arrays = {name: getattr(result, name) for name in ("weights", "output")}
    np.savez_compressed(
        path,
        tokens=np.array(result.sizes.q_tokens.padded),
        memory_tokens=np.array(result.sizes.k_tokens.padded),
        experiment=np.array(result.experiment.to_json()),
        **{name: (tensor if double else tensor.float()).numpy() for name, tensor in arrays.items()},
    )


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON has no word for them."""
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_summary(summary: dict[str, Any]) -> None:
    """Write the summary for a person."""
    sizes = " ".join(f"{letter}={size}" for letter, size in summary["sizes"].items())
    print(f"{sizes}  {summary['parameters']:,} parameters  {summary['matmul_flops']:,} matmul FLOPs")
    print(f"rows sum to {summary['row_sum']['min']:.6f} to {summary['row_sum']['max']:.6f}")
    columns = ("entropy_nats", "effective_keys", "diagonal", "previous", "first", "maximum")
    for sequence, (tokens, heads) in enumerate(zip(summary["tokens"], summary["heads"], strict=True)):
        print(f"\nsequence {sequence}: {' '.join(tokens)}")
        print("head " + " ".join(f"{name:>14}" for name in columns))
        for stats in heads:
            print(f"{stats['head']:>4} " + " ".join(f"{stats[name]:>14.4f}" for name in columns))
    for finding in summary["findings"]:
        print(f"\nsequence {finding['sequence']}: {finding['sentence']}")


def command_run(options: argparse.Namespace) -> int:
    """Run one experiment and describe it."""
    result = run(experiment_from(options))
    summary = summarise(result)
    if options.save is not None:
        try:
            save_npz(result, options.save)
        except OSError as error:
            problem = f"cannot write {options.save}: {error.strerror}"
            raise MhaError("save", str(options.save), "a path that can be written", problem=problem) from error
    print(json.dumps(_without_nan(summary), ensure_ascii=False)) if options.json else print_summary(summary)
    return EXIT_FINDING if any(finding["kind"] in ALARMING for finding in summary["findings"]) else EXIT_FINE


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _Parser(prog="python -m mha_core", description="See, break and repair multi-head attention.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run_parser = commands.add_parser("run", help="text or random input to weights and a summary")
    add_experiment_options(run_parser)
    run_parser.add_argument("--json", action="store_true", help="print JSON")
    run_parser.add_argument("--save", type=Path, metavar="FILE.npz", help="save tokens, weights and output")
    run_parser.set_defaults(do=command_run)
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
    do: Callable[[argparse.Namespace], int] = options.do
    try:
        code = do(options)
        sys.stdout.flush()
        return code
    except MhaError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader left, as `| head` does: nobody is there to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FINE
