"""The tables of page Clinic: numbers, gradients and the tensors on the way; nothing is drawn here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pandas as pd

from mha_core.clinic.compare import Comparison
from mha_core.clinic.outcome import Number, Outcome
from mha_core.clinic.record import Side


def marked(compared: Comparison, side: Side) -> str:
    """Give the lines of one side, those marked that the other side lacks: - wrong, + right."""
    own, other = (compared.mistake.lines(which).splitlines() for which in (side, _other(side)))
    same = {
        block.a + n
        for block in difflib.SequenceMatcher(None, own, other, False).get_matching_blocks()
        for n in range(block.size)
    }
    sign = "-" if side == "wrong" else "+"
    return "\n".join(f"{' ' if number in same else sign} {line}" for number, line in enumerate(own))


def _other(side: Side) -> Side:
    return "right" if side == "wrong" else "wrong"


def _named(number: Number) -> str:
    return f"{number.name}, {number.unit}" if number.unit else number.name


def numbers(compared: Comparison) -> pd.DataFrame:
    """Give the numbers of both sides."""
    names = {number.name: _named(number) for side in (compared.right, compared.wrong) for number in side.numbers}
    rows = [
        {"number": label, "wrong": compared.wrong.number(name), "right": compared.right.number(name)}
        for name, label in names.items()
    ]
    return pd.DataFrame(rows, columns=["number", "wrong", "right"])


def gradients(compared: Comparison) -> pd.DataFrame:
    """Give the gradient norm of every matrix on both sides, and how far the gradients are apart."""
    wrong, right = compared.wrong.gradients, compared.right.gradients
    rows = [
        {
            "gradient norm of": name,
            "wrong": wrong.get(name),
            "right": right.get(name),
            "difference / right": compared.gradient_change.get(name),
        }
        for name in right or wrong
    ]
    return pd.DataFrame(rows, columns=["gradient norm of", "wrong", "right", "difference / right"])


def both(compared: Comparison) -> pd.DataFrame:
    """Give numbers and gradients as one table to take away."""
    norms = gradients(compared).rename(columns={"gradient norm of": "number"})
    norms["number"] = "gradient norm of " + norms["number"].astype(str)
    table = pd.concat([numbers(compared), norms[["number", "wrong", "right"]]], ignore_index=True)
    table.insert(0, "mistake", compared.mistake.name)
    return table


def seen(outcome: Outcome, reported: Sequence[str]) -> pd.DataFrame:
    """Give the numbers and gradient norms of one side, less those that its own lines report."""
    rows = [(_named(number), number.value) for number in outcome.numbers if number.name not in reported]
    rows += [(f"gradient norm of {name}", value) for name, value in outcome.gradients.items()]
    return pd.DataFrame(rows, columns=["number", "value"])


def facts(outcome: Outcome) -> pd.DataFrame:
    """Give the tensors on the way."""
    rows = [(fact.name, " x ".join(map(str, fact.shape)), fact.dtype, fact.is_contiguous) for fact in outcome.facts]
    return pd.DataFrame(rows, columns=["tensor", "shape", "dtype", "in order"])
