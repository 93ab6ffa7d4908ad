"""The clinic: common mistakes as lines that run on the current experiment, wrong beside right.

Add a mistake to a file of `families`; the page, the exercise and the tests find it through `MISTAKES`.
"""

from __future__ import annotations

from mha_core.clinic.families import FAMILIES
from mha_core.clinic.record import KINDS, SYMPTOMS, Kind, Mistake, Symptom

MISTAKES: dict[str, Mistake] = {mistake.name: mistake for family in FAMILIES for mistake in family}

__all__ = ["KINDS", "MISTAKES", "SYMPTOMS", "Kind", "Mistake", "Symptom"]
