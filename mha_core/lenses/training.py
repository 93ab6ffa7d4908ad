"""The training race: one tiny model, several initialisations of its attention, the same data, step by step.

`race` trains the racers in turn, a block of steps each (A B C A B C), on exactly the same sequences, and yields what is
known after each block. Every sequence is new, so the accuracy of a step is measured on what was never seen; besides,
a held-out set is asked at the recorded steps, and one probe sequence shows the maps. Why each racer did what it did is
`mha_core.lenses.training_reasons`.

Axes: B batch, H heads, S positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mha_core.init_schemes import TARGETS, generator_for
from mha_core.lenses.training_model import RACERS, RaceSetting, TinyModel, check_race
from mha_core.lenses.training_tasks import Batch, spell

HELD_OUT = 256  # sequences
GOAL = 0.95
LayerNorms = tuple[tuple[float, ...], ...]  # of q, k, v, out; layer by layer


@dataclass(frozen=True)
class Point:
    """One step of training, measured before its update.

    Attributes:
        step: from 1. loss: mean cross-entropy over the positions that count, nats. accuracy: 0..1.
        gradients: L2 norm of the gradient of each attention matrix; 0.0 only where every entry is 0.
        other_gradient: L2 norm over embeddings, read-out and biases.
    """

    step: int
    loss: float
    accuracy: float
    gradients: LayerNorms
    other_gradient: float

    def gradient(self, matrices: Sequence[str] = TARGETS) -> float:
        """Join the norms of some matrices over all layers."""
        chosen = [TARGETS.index(name) for name in matrices]
        return math.hypot(*(layer[place] for layer in self.gradients for place in chosen))


@dataclass(frozen=True, eq=False)
class Progress:
    """What is known of one racer after a block of steps.

    Attributes:
        step: steps done; 0 is the start. points: the steps of this block.
        accuracy: on the held-out sequences, 0..1.
        maps: attention weights of the probe, float32 (layers, H, S, S).
        weight_norms: L2 norm of each attention matrix. value_ranks: rank of W_v, layer by layer.
    """

    racer: str
    step: int
    points: tuple[Point, ...]
    accuracy: float
    maps: NDArray[np.float32]
    weight_norms: LayerNorms
    value_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Track:
    """All that was recorded of one racer, in order."""

    racer: str
    stops: tuple[Progress, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """Every step."""
        return tuple(point for stop in self.stops for point in stop.points)

    @property
    def accuracy(self) -> float:
        """The last accuracy on the held-out sequences."""
        return self.stops[-1].accuracy

    def steps_to(self, accuracy: float = GOAL) -> int | None:
        """Give the first recorded step with at least this held-out accuracy."""
        return next((stop.step for stop in self.stops if stop.accuracy >= accuracy), None)

    def at(self, step: int) -> Progress:
        """Give what was recorded last at or before a step."""
        return next(stop for stop in reversed(self.stops) if stop.step <= step)


@dataclass(eq=False)
class _Runner:
    """One racer and its optimiser."""

    name: str
    setting: RaceSetting
    model: TinyModel = field(init=False)
    adam: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        self.model = TinyModel(self.setting, RACERS[self.name].spec)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=self.setting.learning_rate)

    @torch.enable_grad()
    def take_step(self, step: int, batch: Batch) -> Point:
        """Train on one batch."""
        logits, _ = self.model(batch.inputs)
        asked, targets = logits[batch.counts], batch.targets[batch.counts]
        loss = F.cross_entropy(asked, targets)
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = _norms([[matrix.grad for matrix in layer] for layer in self.model.matrices()])
        others = [_norm(p.grad) for p in self.model.others() if p.grad is not None]
        self.adam.step()
        return Point(step, loss.item(), _accuracy(asked, targets), gradients, math.hypot(*others))

    @torch.no_grad()
    def stop(self, step: int, points: tuple[Point, ...], held_out: Batch) -> Progress:
        """Ask the held-out sequences, the first of which is the probe."""
        logits, _ = self.model(held_out.inputs)
        accuracy = _accuracy(logits[held_out.counts], held_out.targets[held_out.counts])
        _, maps = self.model(held_out.inputs[:1], need_weights=True)
        shown = torch.cat(maps).numpy()  # layers x (1, H, S, S) -> (layers, H, S, S)
        matrices = self.model.matrices()
        ranks = tuple(_rank(v) for _, _, v, _ in matrices)
        return Progress(self.name, step, points, accuracy, shown, _norms(matrices), ranks)


def _norms(tensors: Sequence[Sequence[Tensor | None]]) -> LayerNorms:
    return tuple(tuple(0.0 if t is None else _norm(t) for t in layer) for layer in tensors)


def _norm(tensor: Tensor) -> float:
    """L2 norm in float64: the square of a small float32 would round to zero, and zero has a meaning here."""
    return float(tensor.detach().double().norm())


def _rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix)) if matrix.isfinite().all() else 0


def _accuracy(logits: Tensor, targets: Tensor) -> float:
    return (logits.argmax(-1) == targets).float().mean().item()


def held_out(setting: RaceSetting) -> Batch:
    """Draw the sequences that are asked and never trained on."""
    rng = generator_for(setting.seed, "race", "held out")
    return setting.rules.draw(rng, HELD_OUT, setting.length, setting.vocab)


def probe_labels(setting: RaceSetting) -> list[str]:
    """Give the tokens of the probe sequence, whose maps are shown."""
    return [spell(token, setting.vocab) for token in held_out(setting).inputs[0].tolist()]


def total(setting: RaceSetting, racers: Sequence[str]) -> int:
    """Count the results that a race yields."""
    return len(setting.recorded_steps) * len(racers)


def race(setting: RaceSetting, racers: Sequence[str]) -> Iterator[Progress]:
    """Train the racers in turn. The same setting gives the same numbers, and the global randomness is not touched.

    Yields:
        First the start of each racer, then each racer after each block of steps.

    Raises:
        MhaError: as `check_race`, before anything is computed.
    """
    check_race(setting, racers)
    return _race(setting, racers)


def _race(setting: RaceSetting, racers: Sequence[str]) -> Iterator[Progress]:
    runners, asked = [_Runner(name, setting) for name in racers], held_out(setting)
    rng = generator_for(setting.seed, "race", "data")
    for runner in runners:
        yield runner.stop(0, (), asked)
    for done, until in pairwise(setting.recorded_steps):
        steps = range(done + 1, until + 1)
        batches = [setting.rules.draw(rng, setting.batch, setting.length, setting.vocab) for _ in steps]
        for runner in runners:
            points = tuple(runner.take_step(step, batch) for step, batch in zip(steps, batches, strict=True))
            yield runner.stop(until, points, asked)


def tracks(results: Iterable[Progress]) -> tuple[Track, ...]:
    """Sort results by racer, in the order of the start."""
    stops: dict[str, list[Progress]] = {}
    for result in results:
        stops.setdefault(result.racer, []).append(result)
    return tuple(Track(racer, tuple(found)) for racer, found in stops.items())


def rows(results: Iterable[Progress]) -> list[dict[str, Any]]:
    """Write every step of every racer as a flat row."""
    return [
        {"scheme": track.racer, "step": point.step, "loss_nats": point.loss, "batch_accuracy": point.accuracy}
        | {"held_out_accuracy": stop.accuracy if point is stop.points[-1] else None}
        | {
            f"gradient_norm_{name}_layer_{layer}": norm
            for layer, norms in enumerate(point.gradients)
            for name, norm in zip(TARGETS, norms, strict=True)
        }
        | {"gradient_norm_others": point.other_gradient}
        for track in tracks(results)
        for stop in track.stops
        for point in stop.points
    ]
