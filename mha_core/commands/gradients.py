"""`gradients`: one backward pass with verdicts, all schemes side by side, or verdicts on norms recorded elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, add_experiment_options, experiment_from, print_json
from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.grad_losses import LOSSES
from mha_core.lenses.grad_schemes import compare_schemes
from mha_core.lenses.gradients import Flow
from mha_core.lenses.recorded_norms import MAX_NORM_BYTES, RULES, judge_norms, parse_norms
from mha_core.lenses.verdicts import ALARMING, IDENTICAL, THRESHOLDS, Verdict, judged


def _row(flow: Flow, verdict: Verdict) -> dict[str, Any]:
    row = asdict(flow) | {"ratio": flow.ratio}
    heads = row.pop("heads")
    return row | {"verdict": asdict(verdict), "heads": [{"head": n} | head for n, head in enumerate(heads)]}


def one_pass(experiment: Experiment, loss: str) -> dict[str, Any]:
    """Give one backward pass and its verdicts as plain data."""
    result = judged(experiment, loss)
    found = result.found
    return {
        "experiment": experiment.to_fields(),
        "loss": loss,
        "loss_is": LOSSES[loss].summary,
        "loss_value": found.loss_value,
        "parameters": [_row(flow, result.parameters[flow.name]) for flow in found.parameters],
        "tensors": [_row(flow, result.tensors[flow.name]) for flow in found.tensors],
        "facts": asdict(found.facts),
        "note": found.note,
        "identical_heads": found.facts.identical_heads,
        "thresholds": THRESHOLDS,
        "alarming": any(verdict.is_alarming for verdict in result.parameters.values()),
    }


def side_by_side(experiment: Experiment, loss: str) -> dict[str, Any]:
    """Give every scheme as plain data; alarming is what the experiment's own scheme does."""
    rows = list(compare_schemes(experiment, loss))
    own = next(row for row in rows if row.scheme == experiment.init.scheme)
    return {
        "experiment": experiment.to_fields(),
        "loss": loss,
        "schemes": [
            row.as_row() | {"verdicts": {name: asdict(verdict) for name, verdict in row.verdicts.items()}}
            for row in rows
        ],
        "thresholds": THRESHOLDS,
        "alarming": any(verdict.is_alarming for verdict in own.verdicts.values()),
    }


def recorded(path: Path) -> dict[str, Any]:
    """Give the verdicts on a file of norms as plain data.

    Raises:
        MhaError: field "norms": the file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_NORM_BYTES + 1)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise MhaError("norms", str(path), "a JSON file of norms", problem=problem) from error
    verdicts = judge_norms(parse_norms(raw))
    return {
        "norms": [asdict(verdict) for verdict in verdicts],
        "thresholds": RULES,
        "alarming": any(verdict.kind in ALARMING for verdict in verdicts),
    }


def _number(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.4g'):>11}"


def print_pass(found: Mapping[str, Any]) -> None:
    """Write one backward pass for a person."""
    print(f"loss {found['loss']} = {found['loss_value']:.6g}: {found['loss_is']}\n")
    print(f"{'':<10}{'norm':>11}{'RMS':>11}{'/ value':>11}{'zeros':>11}  verdict")
    for title, rows in (("parameters", found["parameters"]), ("tensors", found["tensors"])):
        print(title)
        for row in rows:
            numbers = "".join(_number(row[name]) for name in ("norm", "rms", "ratio", "zeros"))
            print(f"  {row['name']:<8}{numbers}  {row['verdict']['kind']}")
    _print_reasons((row["name"], row["verdict"]) for row in found["parameters"])
    if found["identical_heads"]:
        print("\n" + IDENTICAL.format(heads=found["experiment"]["num_heads"]))
    if found["note"]:
        print(f"\n{found['note']}")


def _print_reasons(verdicts: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    for name, verdict in verdicts:
        if verdict["kind"] != "healthy":
            print(f"\n{name} is {verdict['kind']}: {verdict['reason']}", end="")
    print()


def print_schemes(found: Mapping[str, Any]) -> None:
    """Write the schemes for a person: std of the stages, entropy, then norm and verdict of each matrix."""
    print(f"loss {found['loss']}; gradient norm and verdict of each matrix\n")
    stages = ("std_q", "std_k", "std_scores", "relative_entropy", "std_output")
    names = ("q", "k", "v", "out")
    print(f"{'scheme':<16}" + "".join(f"{stage.replace('relative_', ''):>11}" for stage in stages))
    for row in found["schemes"]:
        print(f"{row['scheme']:<16}" + "".join(_number(row.get(stage)) for stage in stages))
    print("\n" + f"{'scheme':<16}" + "".join(f"{name:>21}" for name in names))
    for row in found["schemes"]:
        cells = (f"{row[f'norm_{name}']:.3g} {row[f'verdict_{name}']}" for name in names)
        print(
            f"{row['scheme']:<16}" + "".join(f"{cell:>21}" for cell in cells) + "  identical" * row["identical_heads"]
        )


def print_recorded(found: Mapping[str, Any]) -> None:
    """Write verdicts on recorded norms for a person."""
    for row in found["norms"]:
        print(f"{_number(row['norm'])}  {row['kind']:<10} {row['name']}: {row['reason']}")
    print(f"\n{found['thresholds']}")


def command(options: argparse.Namespace) -> int:
    """Look where the gradient goes."""
    if options.norms is not None:
        found, show = recorded(options.norms), print_recorded
    elif options.schemes:
        found, show = side_by_side(experiment_from(options), options.loss), print_schemes
    else:
        found, show = one_pass(experiment_from(options), options.loss), print_pass
    print_json(found) if options.json else show(found)
    return EXIT_FINDING if found["alarming"] else EXIT_FINE


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_experiment_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--loss", default="sum", metavar="LOSS", help=f"{', '.join(LOSSES)}; default sum")
    parser.add_argument("--schemes", action="store_true", help="all initialisation schemes side by side")
    parser.add_argument("--norms", type=Path, metavar="FILE.json", help="judge norms recorded elsewhere, name -> norm")
