"""The exercise: a mistake planted by a seed, and the five from which to choose.

The seed alone decides, so that a link can carry an exercise without naming its answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mha_core.clinic.record import Mistake

CANDIDATES = 5


@dataclass(frozen=True)
class Exercise:
    """A planted mistake, and the names of the candidates, the planted one among them."""

    planted: str
    candidates: tuple[str, ...]

    @property
    def answer(self) -> int:
        """Place of the planted one among the candidates, from 0."""
        return self.candidates.index(self.planted)


def _likeness(one: Mistake, other: Mistake) -> int:
    """Count what makes a candidate plausible: shared symptoms, the same steps, the same kind."""
    shared = len({*one.symptoms} & {*other.symptoms})
    return 2 * shared + len({*one.steps} & {*other.steps}) + (one.kind == other.kind)


def plantable(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Give the mistakes that break a layer, in the order of the registry."""
    return [mistake for mistake in mistakes if mistake.changes_the_layer]


def plant(seed: int, mistakes: Mapping[str, Mistake]) -> Exercise:
    """Plant a mistake.

    Args:
        seed: any whole number from 0; neighbouring seeds plant different kinds of mistakes.
        mistakes: the registry.
    """
    rng = random.Random(f"clinic {seed}")
    there = plantable(mistakes.values())
    planted = rng.choice(there)
    others = [mistake for mistake in there if mistake is not planted]
    others.sort(key=lambda other: (-_likeness(planted, other), rng.random()))
    near = others[: 2 * CANDIDATES]
    chosen = [planted, *rng.sample(near, CANDIDATES - 1)]
    rng.shuffle(chosen)
    return Exercise(planted.name, tuple(mistake.name for mistake in chosen))
