"""What differs between the two sides of a mistake, in sentences with numbers.

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from mha_core.choices import Experiment
from mha_core.clinic.case import Case, case_of
from mha_core.clinic.nearest import Nearest, nearest
from mha_core.clinic.outcome import Number, Outcome, look
from mha_core.clinic.record import Mistake
from mha_core.experiment import prepare
from mha_core.sources.inputs import Sizes

SAME = 1e-5  # differences below it, as a share of the right side's size, are rounding
HALF_SAME = 2e-2
SHOWN_NUMBERS = 3
WORTH_SAYING = 0.15  # share by which a statistic has to differ
INVISIBLE = (
    "On this experiment nothing visible changes, which is what makes it dangerous: a test on such an input passes."
)
NOT_COMPARED = ("size (RMS) of the output",)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Both sides of a mistake on one experiment.

    Attributes:
        mistake, nearest: what was run, and on which experiment. sizes: its tokens.
        mask: (B, 1, Sq, Sk), True = may attend, as both sides were given it.
        wrong, right: the outcomes.
        map_change: (B, H, Sq, Sk), wrong minus right; None where the maps cannot be laid over one another.
        gradient_change: norm of the difference per matrix, as a share of the right gradient's norm.
        sentences: what changes.
        is_silent: nothing stops and no number is not finite: nothing but a test would tell.
        is_invisible: not even the numbers compared here differ.
    """

    mistake: Mistake
    nearest: Nearest
    sizes: Sizes
    mask: Tensor
    wrong: Outcome
    right: Outcome
    map_change: Tensor | None
    gradient_change: Mapping[str, float]
    sentences: tuple[str, ...]
    is_silent: bool
    is_invisible: bool


def _difference(wrong: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Subtract maps or outputs, where their shapes can be laid over one another."""
    if wrong is None or right is None or wrong.shape[-2:] != right.shape[-2:] or wrong.ndim != right.ndim:
        return None
    sizes = zip(wrong.shape[:-2], right.shape[:-2], strict=True)
    return wrong - right if all(one in (1, other) for one, other in sizes) else None


def _tolerance(case: Case) -> float:
    return HALF_SAME if case.query.element_size() < 4 or case.experiment.dtype == "autocast" else SAME


def _largest(change: Tensor) -> tuple[float, tuple[int, ...]]:
    """Give the largest difference, finite or not, and where it is."""
    size = change.abs().nan_to_num(math.inf)
    flat = int(size.argmax())
    where = []
    for length in reversed(change.shape):
        flat, place = divmod(flat, length)
        where.append(place)
    return size.max().item(), tuple(reversed(where))


def _map_sentence(change: Tensor | None, wrong: Outcome, right: Outcome, tolerance: float) -> str:
    if wrong.maps is None or right.maps is None:
        return ""
    if change is None:
        return f"The maps are {tuple(wrong.maps.shape)} instead of {tuple(right.maps.shape)}."
    size, (sequence, head, query, key) = _largest(change)
    if math.isinf(size):
        return f"Some weights are not numbers, as in sequence {sequence}, head {head}, query {query}."
    if size <= tolerance:
        return "The maps are the same."
    place = f"sequence {sequence}, " if change.shape[0] > 1 else ""
    return f"Weights differ by up to {size:.3g}: {place}head {head}, query {query}, key {key}."


def _output_sentence(case: Case, wrong: Outcome, right: Outcome, tolerance: float) -> str:
    change = _difference(wrong.output, right.output)
    if change is None or right.output is None:
        return ""
    bad = int((~change.isfinite()).sum())
    if bad:
        return f"{bad:,} of {change.numel():,} numbers of the output differ by something not finite."
    share = change.norm().item() / max(right.output.norm().item(), 1e-30)
    if share <= tolerance:
        return "The output is the same."
    return f"The output is off by {share:.3g} times its own size; no shape tells."


def _gradient_change(wrong: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, float]:
    """Give the norm of the gradients' difference per matrix, as a share of the right one's (of 1 where that is 0)."""
    return {
        name: (wrong[name].double() - right[name].double()).norm().item() / (right[name].double().norm().item() or 1.0)
        for name in right
        if name in wrong and wrong[name].shape == right[name].shape
    }


def _gradient_words(wrong: float, right: float, share: float) -> str:
    if not math.isfinite(wrong):
        return "not finite"
    if right == 0 or wrong == 0:
        return f"{wrong:.3g} instead of {right:.3g}"
    return f"off by {share:.3g} of its norm, {wrong / right:.3g} times as long"


def _gradient_sentence(changes: Mapping[str, float], wrong: Outcome, right: Outcome, tolerance: float) -> str:
    if not changes:
        return ""
    off = {name: share for name, share in changes.items() if not share <= 10 * tolerance}
    if not off:
        return "The gradients are the same."
    bad = [name for name in off if not math.isfinite(wrong.gradients[name])]
    worst = max(off, key=lambda name: math.inf if name in bad else off[name])
    if bad:
        return f"Gradients are not finite: {', '.join(bad)}."
    zero = [name for name in off if wrong.gradients[name] == 0]
    if zero:
        return f"The gradient is exactly 0 for {', '.join(zero)}."
    return f"Gradient of {worst}: {_gradient_words(wrong.gradients[worst], right.gradients[worst], off[worst])}."


def _spelled(number: float, unit: str) -> str:
    if 0 < abs(number) < 1e-5:
        return "0 but for rounding"
    text = f"{number:,.0f}" if abs(number) >= 1e4 and number == int(number) else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def _weight(number: Number, other: float, reported: Collection[str], tolerance: float) -> float:
    """Weigh a difference: its share, infinite for what the lines report, 0 for noise."""
    if number.name in reported:
        return 0.0 if number.value == other else math.inf
    if math.isnan(number.value):
        return 0.0  # how many there are is a number of its own
    size, change = max(abs(number.value), abs(other)), abs(number.value - other)
    is_noise = number.name.startswith("outputs moved") and size < 1e-4
    return 0.0 if is_noise or change <= WORTH_SAYING * size or change <= tolerance else change / size


def _number_sentences(mistake: Mistake, wrong: Outcome, right: Outcome, tolerance: float) -> Iterator[str]:
    """Name the numbers that differ most."""
    reported = {name for _, name, _ in mistake.reports}
    others = {number.name: number.value for number in right.numbers if number.name not in NOT_COMPARED}
    pairs = [(number, others[number.name]) for number in wrong.numbers if number.name in others]
    weighed = [(_weight(number, other, reported, tolerance), number, other) for number, other in pairs]
    weighed = sorted((found for found in weighed if found[0] > 0), key=lambda found: -found[0])
    for _, number, other in weighed[:SHOWN_NUMBERS]:
        name = number.name[0].upper() + number.name[1:]
        yield f"{name}: {_spelled(number.value, number.unit)} instead of {_spelled(other, number.unit)}."


def _failure_sentence(wrong: Outcome, right: Outcome) -> str:
    if wrong.failure is None:
        return ""
    after = "The right line runs." if right.failure is None else f"The right line stops as well: {right.failure.text}"
    return f"It stops in step “{wrong.failure.step}”. {after}"


def _askable(wrong: Outcome, right: Outcome, tolerance: float) -> tuple[Outcome, Outcome]:
    """Leave out the padding probe where added tokens move the right side too: its lines count the tokens."""
    moved = right.moved.get("padding")
    if (
        moved is None
        or right.output is None
        or moved.max().item() <= 10 * tolerance * max(1.0, right.output.abs().max().item())
    ):
        return wrong, right

    def without(outcome: Outcome) -> Outcome:
        kept = {probe: map_ for probe, map_ in outcome.moved.items() if probe != "padding"}
        numbers = tuple(number for number in outcome.numbers if number.name != "outputs moved by added padding")
        return replace(outcome, moved=kept, numbers=numbers)

    return without(wrong), without(right)


def compare(experiment: Experiment, mistake: Mistake, also: Sequence[str] = ()) -> Comparison:
    """Run both sides of a mistake on an experiment, or on the nearest one that shows it.

    Args:
        also: needs beside those of the mistake.

    Raises:
        MhaError: the experiment cannot be run.
    """
    shown = nearest(experiment, [*mistake.needs, *also])
    case = case_of(shown.experiment)
    (wrong, wrong_gradients), (right, right_gradients) = look(case, mistake, "wrong"), look(case, mistake, "right")
    tolerance, change = _tolerance(case), _difference(wrong.maps, right.maps)
    wrong, right = _askable(wrong, right, tolerance)
    gradients = _gradient_change(wrong_gradients, right_gradients)
    told = [
        _failure_sentence(wrong, right),
        _map_sentence(change, wrong, right, tolerance),
        _output_sentence(case, wrong, right, tolerance),
        _gradient_sentence(gradients, wrong, right, tolerance),
    ]
    numbers = list(_number_sentences(mistake, wrong, right, tolerance)) if wrong.failure is None else []
    told = [sentence for sentence in told if sentence]
    same = all(sentence.endswith("the same.") for sentence in told)
    is_silent = wrong.failure is None and all(map(math.isfinite, [*wrong.gradients.values(), wrong.loss or 0.0]))
    if same and numbers:
        told = ["Maps, output and gradients are the same; only the number is wrong."]
    said = (*told, *numbers)
    is_invisible = same and not numbers
    if is_invisible:
        said = (INVISIBLE,)
    sizes = prepare(shown.experiment)
    return Comparison(mistake, shown, sizes, case.mask, wrong, right, change, gradients, said, is_silent, is_invisible)
