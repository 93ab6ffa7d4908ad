"""Tasks for the training race: sequences whose answers lie among the tokens before them, drawn without end.

Each task says which positions it determines; loss and accuracy count those alone. Its chance is the best score that can
be had from the token at a position and the position itself, without looking anywhere else.

Axes: B batch, S positions = 2 x length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SEPARATOR = "→"


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of one task.

    Attributes:
        inputs: (B, S), tokens 0..V-1, and V for the separator.
        targets: (B, S), the token to say at each position; meaningless where it does not count.
        counts: boolean (B, S), True where the task determines the target.
    """

    inputs: Tensor
    targets: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        summary: one sentence.
        needs: what a model has to do for it, in a few words.
        draw: (generator, batch, length, vocab) -> Batch.
        chance: (length, vocab) -> best accuracy without looking at other positions, 0..1.
        distinct: whether the tokens of a sequence differ, so that vocab may not be smaller than length.
    """

    name: str
    summary: str
    needs: str
    draw: Callable[[torch.Generator, int, int, int], Batch]
    chance: Callable[[int, int], float]
    distinct: bool = False


def _answer_after(question: Tensor, answer: Tensor, vocab: int) -> Batch:
    """Write question, separator, answer; from the separator on, the next token of the answer is to be said."""
    batch, length = question.shape
    separator = torch.full((batch, 1), vocab)
    inputs = torch.cat([question, separator, answer[:, :-1]], dim=1)  # (B, L), (B, 1), (B, L - 1) -> (B, S)
    targets = torch.cat([torch.zeros_like(question), answer], dim=1)
    return Batch(inputs, targets, (torch.arange(2 * length) >= length).expand(batch, -1))


def _draw_tokens(rng: torch.Generator, batch: int, length: int, vocab: int) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=rng)


def draw_copy(rng: torch.Generator, batch: int, length: int, vocab: int) -> Batch:
    """Draw sequences to be repeated."""
    question = _draw_tokens(rng, batch, length, vocab)
    return _answer_after(question, question, vocab)


def draw_reverse(rng: torch.Generator, batch: int, length: int, vocab: int) -> Batch:
    """Draw sequences to be said backwards."""
    question = _draw_tokens(rng, batch, length, vocab)
    return _answer_after(question, question.flip(1), vocab)


def draw_sort(rng: torch.Generator, batch: int, length: int, vocab: int) -> Batch:
    """Draw sequences to be sorted, smallest first."""
    question = _draw_tokens(rng, batch, length, vocab)
    return _answer_after(question, question.sort(1).values, vocab)


def draw_induction(rng: torch.Generator, batch: int, length: int, vocab: int) -> Batch:
    """Draw distinct tokens that repeat with a period of length / 2 to length, another one in each sequence."""
    shuffled = torch.rand(batch, vocab, generator=rng).argsort(1)
    period = torch.randint((length + 1) // 2, length + 1, (batch, 1), generator=rng)
    places = torch.arange(2 * length + 1)
    tokens = shuffled.gather(1, places % period)  # (B, V) -> (B, S + 1)
    return Batch(tokens[:, :-1], tokens[:, 1:], places[:-1] >= period)


def uniform_chance(length: int, vocab: int) -> float:
    """Give 1 / V: neither the position nor the token said before tells anything about the next one."""
    return 1 / vocab


def induction_chance(length: int, vocab: int) -> float:
    """Give 1 / (V - 1): the next token is any but the one that stands there."""
    return 1 / (vocab - 1)


def sort_chance(length: int, vocab: int) -> float:
    """Give the accuracy of always saying the likeliest next token, given the one before and its place.

    The joint probability of neighbours in a sorted sample is counted in closed form (David & Nagaraja 2003, Order
    Statistics, section 3.1): place i holds a and place i + 1 holds b > a where exactly i + 1 draws are at most a, one
    of them a, and the others are at least b, one of them b.
    """
    right = _likeliest_smallest(length, vocab)
    for place in range(length - 1):
        for before in range(vocab):
            later = [_neighbours(place, before, after, length, vocab) for after in range(before + 1, vocab)]
            same = _holds(place, before, length, vocab) - sum(later)
            right += max([same, *later])
    return right / length


def _likeliest_smallest(length: int, vocab: int) -> float:
    return max(_holds(0, token, length, vocab) for token in range(vocab))


def _holds(place: int, token: int, length: int, vocab: int) -> float:
    """Probability that the sorted sample holds a token at a place: more than `place` draws are at most it."""

    def at_most(top: int) -> float:
        share = (top + 1) / vocab
        return sum(math.comb(length, n) * share**n * (1 - share) ** (length - n) for n in range(place + 1, length + 1))

    return at_most(token) - at_most(token - 1)


def _neighbours(place: int, before: int, after: int, length: int, vocab: int) -> float:
    """Probability that the sorted sample holds `before` at a place and the larger `after` at the next."""
    low, high = place + 1, length - place - 1
    below = ((before + 1) / vocab) ** low - (before / vocab) ** low
    above = ((vocab - after) / vocab) ** high - ((vocab - after - 1) / vocab) ** high
    return math.comb(length, low) * below * above


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "copy",
            "After the separator, repeat the sequence.",
            "look back by a fixed distance",
            draw_copy,
            uniform_chance,
        ),
        Task(
            "reverse",
            "After the separator, say the sequence backwards.",
            "look back by a distance that grows with each token",
            draw_reverse,
            uniform_chance,
        ),
        Task(
            "sort",
            "After the separator, say the sequence in alphabetical order.",
            "compare tokens",
            draw_sort,
            sort_chance,
        ),
        Task(
            "induction",
            "A sequence repeats with a period that is not told: what came after this token last time?",
            "know for each token which one stood before it, which takes a layer of its own",
            draw_induction,
            induction_chance,
            distinct=True,
        ),
    )
}


def spell(token: int, vocab: int) -> str:
    """Write a token as a letter, the separator as an arrow."""
    return SEPARATOR if token == vocab else LETTERS[token]
