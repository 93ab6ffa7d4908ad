"""The nearest experiment on which a mistake shows: the one that is chosen, or one that differs in a few fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mha_core.choices import Experiment
from mha_core.clinic.needs import FITTING, NEEDS, ORDER, Fields
from mha_core.config import DEFAULT_ROPE_THETA
from mha_core.errors import MhaError
from mha_core.experiment import prepare
from mha_core.fields import DEFAULTS

LENGTHS = ("source", "text", "memory_text", "tokenizer", "q_len", "k_len")


@dataclass(frozen=True)
class Nearest:
    """An experiment on which a mistake shows: itself, the fields that were changed, and which needs they meet."""

    experiment: Experiment
    changes: Fields
    reasons: tuple[str, ...]


def nearest(experiment: Experiment, needs: Sequence[str]) -> Nearest:
    """Give the experiment itself where it shows the mistake, else one that differs in a few fields and does."""
    wanted = sorted({"small", *needs}, key=ORDER.index)
    missing = tuple(NEEDS[name].words for name in _unmet(experiment, wanted))
    if not missing:
        return Nearest(experiment, {}, ())
    start = DEFAULTS | experiment.to_fields()
    # What was chosen is given up piece by piece: the input, the sizes, everything.
    bases: tuple[Fields, ...] = ({}, {"source": "text"}, {"source": "text", **FITTING}, DEFAULTS)
    for base in bases:
        found = _meet(start | base, wanted)
        if found is not None:
            return Nearest(found, _difference(experiment, found), missing)
    raise MhaError("source", experiment.to_fields()["source"], "an experiment on which this mistake can show")


def _unmet(experiment: Experiment, wanted: Sequence[str]) -> list[str]:
    sizes = prepare(experiment)
    return [name for name in wanted if not NEEDS[name].met(experiment, sizes)]


def _without_custom(fields: Fields, change: Fields) -> Fields:
    """Drop the custom mask where a change makes other lengths and brings none of its own."""
    kinds = fields["mask"]
    if not isinstance(kinds, tuple) or "mask" in change or not {*LENGTHS} & {*change}:
        return fields
    return fields | {"mask": tuple(kind for kind in kinds if kind != "custom")}


def _meet(fields: Fields, wanted: Sequence[str]) -> Experiment | None:
    """Change fields, need by need, until all are met; None where that does not come to an end."""
    try:
        for _ in range(2 * len(wanted) + 4):
            experiment = Experiment.from_fields(fields)
            unmet = _unmet(experiment, wanted)
            if not unmet:
                return experiment
            change = NEEDS[unmet[0]].change(experiment, prepare(experiment))
            fields = _without_custom(fields, change) | change
    except MhaError:
        return None
    return None


def _difference(before: Experiment, after: Experiment) -> Fields:
    """Give the fields in which two experiments differ."""
    old, new = DEFAULTS | before.to_fields(), after.to_fields()
    if new.get("positions") == "rotary" and new.get("rope_theta") == DEFAULT_ROPE_THETA:
        del new["rope_theta"]  # follows from the positions
    return {name: value for name, value in new.items() if old[name] != value}
