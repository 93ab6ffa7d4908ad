"""What an explanation is made of: rules that read a text, readings that fit its numbers, and the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

CLEAR_LEAD = 4.0  # a reading this far behind the best is not worth a sentence
LENGTHS = ("q_len", "k_len")


@dataclass(frozen=True)
class Explanation:
    """What an error text means.

    Attributes:
        known: whether the text is one that is understood.
        kind: of mistake, as in `KINDS`; of an unknown text the nearest one, or "".
        explanation: one short paragraph, with the numbers worked out.
        try_: concrete changes, most likely first.
    """

    known: bool
    kind: str
    explanation: str
    try_: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One error text, made even.

    Attributes:
        message: the error on one line, without quotes of any unusual form.
        whole: everything that was pasted, on one line: source lines of a traceback hint at what a tensor is.
        sizes: what the person knows, by name (batch, q_len, k_len, embed_dim, num_heads, num_kv_heads, head_dim).
    """

    message: str
    whole: str
    sizes: Mapping[str, int] = field(default_factory=dict)

    def hints(self, pattern: str) -> bool:
        """Tell whether the pasted text speaks of something."""
        return re.search(pattern, self.whole, re.IGNORECASE) is not None

    def named(self, number: int) -> str:
        """Name a number by the sizes that equal it: "10 (= batch)", or "10"."""
        names = [name for name, size in self.sizes.items() if size == number]
        return f"{number} (= {' = '.join(names)})" if names else str(number)


@dataclass(frozen=True)
class Reading:
    """One way to understand the numbers of a text.

    Attributes:
        kind: of mistake.
        score: how plausible it is before the known sizes are compared.
        sentence: what happened.
        try_: what to change.
        roles: which size the reading takes for which; "length" may be either length.
    """

    kind: str
    score: float
    sentence: str
    try_: tuple[str, ...] = ()
    roles: Mapping[str, int] = field(default_factory=dict)

    def judged(self, sizes: Mapping[str, int]) -> float:
        """Weigh the reading by what is known: each size that agrees speaks for it, each other one against it."""
        score = self.score
        for role, number in self.roles.items():
            known = {sizes[name] for name in (LENGTHS if role == "length" else (role,)) if name in sizes}
            score += 0 if not known else 3 if number in known else -3
        return score


Rule = tuple[re.Pattern[str], Callable[[re.Match[str], Problem], Explanation | None]]


def answer(facts: str, readings: Sequence[Reading], problem: Problem) -> Explanation | None:
    """Tell the readings that fit, most likely first; None where none does."""
    scored = sorted(((reading.judged(problem.sizes), reading) for reading in readings), key=lambda pair: -pair[0])
    ranked = list({r.sentence: r for score, r in scored if score > scored[0][0] - CLEAR_LEAD}.values())[:3]
    if not ranked:
        return None
    first, *others = ranked
    lead = f"Most likely {first.sentence}" if others else _opening(first.sentence)
    said = [facts, f"{lead}.", *(f"It also fits that {other.sentence}." for other in others)]
    changes = [*first.try_, *(change for other in others for change in other.try_[:1])]
    return Explanation(True, first.kind, " ".join(filter(None, said)), tuple(dict.fromkeys(changes)))


def _opening(sentence: str) -> str:
    """Begin with a capital, unless the first word is a name in code."""
    return f"{sentence[0].upper()}{sentence[1:]}" if re.match(r"[a-z]+[ :,]", sentence) else sentence


def rule(pattern: str, handler: Callable[[re.Match[str], Problem], Explanation | None]) -> Rule:
    """Make a rule of a pattern, found anywhere in a message, and of what reads it."""
    return re.compile(pattern, re.IGNORECASE), handler


def says(pattern: str, kind: str, explanation: str, *changes: str) -> Rule:
    """Make a rule whose answer needs no arithmetic; `<name>` stands for what the group of that name matched."""

    def fill(text: str, match: re.Match[str]) -> str:
        return re.sub(r"<(\w+)>", lambda slot: str(match.groupdict().get(slot[1]) or "?"), text)

    def handler(match: re.Match[str], problem: Problem) -> Explanation:
        return Explanation(True, kind, fill(explanation, match), tuple(fill(change, match) for change in changes))

    return rule(pattern, handler)


def numbers(text: str) -> tuple[int, ...]:
    """Read the whole numbers of a shape: "[2, 8, 5]", "(2,8,5)" and "2x8x5" alike; None and ? of a graph are -1."""
    return tuple(-1 if part in ("None", "?") else int(part) for part in re.findall(r"-?\d+|None|\?", text))
