"""What all commands share: options that carry the names of an experiment's fields, exit codes, and JSON output."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

from mha_core.errors import FieldValue
from mha_core.experiment import Experiment
from mha_core.fields import FIELDS, Field

EXIT_FINE, EXIT_FINDING, EXIT_BAD_INPUT = 0, 1, 2


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


def fields_from(options: argparse.Namespace) -> dict[str, FieldValue]:
    """Read the fields that the options give; sizes of a random input imply `--source random`.

    Raises:
        MhaError: a value is bad.
    """
    given = {name: getattr(options, name) for name in FIELDS if getattr(options, name) is not None}
    values: dict[str, FieldValue] = {name: _read(FIELDS[name], text) for name, text in given.items()}
    if "source" not in values and "text" not in values and {"batch", "q_len", "k_len", "distribution"} & set(values):
        values["source"] = "random"
    return values


def experiment_from(options: argparse.Namespace) -> Experiment:
    """Build the experiment that the options describe.

    Raises:
        MhaError: a value is bad, or values contradict one another.
    """
    return Experiment.from_fields(fields_from(options))


def _read(field: Field, text: str) -> FieldValue:
    """Read an option; a text is taken as it is typed, never as a packed link."""
    return text if field.kind == "text" else field.read(text)


def without_nan(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON has no word for them."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_json(answer: Mapping[str, Any]) -> None:
    """Print an answer for machines, on one line."""
    print(json.dumps(without_nan(answer), ensure_ascii=False))
