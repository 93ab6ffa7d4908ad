"""The ways to use a module that causality is asked of, and what one of them shows.

Training or not, dropout or not, weights wanted or not, a padding mask or not, and causality asked for in the call.

Axes: B batch, S tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mha_core.doctor.causes.mistakes import mixes_batch_in_training
from mha_core.doctor.probes.influence import NOISE, Probe, hiding, influence, key_part
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

BATCH = 2


@dataclass(frozen=True)
class Use:
    """One way of using the module."""

    words: str
    mode: Mode
    masks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What one use showed: moved[i, j] is how much output i moves with token j, relative to its size."""

    use: Use
    moved: Tensor

    @property
    def leak(self) -> Tensor:
        """Movements by later tokens. (S, S)."""
        return self.moved.triu(1)

    @property
    def is_causal(self) -> bool:
        return not bool((self.leak > NOISE).any())

    @property
    def is_almost_causal(self) -> bool:
        """Whether the whole past is seen and of the future only what a triangle that is off by one lets through."""
        leaks, size = self.leak > NOISE, self.moved.shape[0]
        if size < 4 or not bool((self.moved.tril(-1) > NOISE).sum() == size * (size - 1) // 2):
            return False
        one_ahead = int(leaks.sum()) == size - 1 and bool(leaks.diagonal(1).all())
        return one_ahead or bool(leaks[0, 1:].all() and not leaks[1:].any())

    @property
    def sees_others(self) -> bool:
        return bool((self.moved.tril(-1) > NOISE).any())


def causal_uses(subject: Subject, length: int) -> list[Use]:
    """List the ways to use the module: modes, each without and with a padding mask."""
    modes = {
        "evaluation": Mode(),
        "evaluation, weights wanted": Mode(weights=True),
        "training without dropout": Mode(training=True, dropout=0.0),
        "training without dropout, weights wanted": Mode(training=True, weights=True, dropout=0.0),
        "training with dropout 0.3": Mode(training=True, dropout=0.3),
        "training with dropout 0.3, weights wanted": Mode(training=True, weights=True, dropout=0.3),
        "training as built": Mode(training=True),
    }
    keep = torch.ones(BATCH, length, dtype=torch.bool)
    keep[1, -1] = False
    masks = hiding(subject, keep, length) if subject.key_mask else None
    uses = []
    for words, mode in modes.items():
        if mode.training and mixes_batch_in_training(subject):
            continue
        uses.append(Use(words, mode))
        if masks is not None and "keep_keys" in masks:
            uses.append(Use(f"{words}, with a padding mask", mode, masks))
    return uses


def all_seen(subject: Subject, length: int, **more: Any) -> list[Seen]:
    """Look at every use; one that raises is another check's finding, unless none works."""
    found: list[Seen] = []
    failure: ModuleFailure | None = None
    for use in causal_uses(subject, length):
        probe = Probe(subject, use.mode, {**use.masks, **more})
        try:
            moved = moved_by_each(probe, subject.inputs(BATCH, length))
        except ModuleFailure as raised:
            failure = failure or raised
            continue
        found.append(Seen(use, moved))
    if not found and failure is not None and not more:
        raise failure
    return found


def all_asked(subject: Subject, length: int) -> list[Seen]:
    """Look at the uses with causality asked for in the call, where forward has an argument for it."""
    if not subject.convention.causal or subject.is_library:
        return []
    found = all_seen(subject, length, causal=True)
    return [
        Seen(Use(f"{one.use.words}, causal asked for", one.use.mode, {**one.use.masks, "causal": True}), one.moved)
        for one in found
    ]


def moved_by_each(probe: Probe, inputs: Inputs) -> Tensor:
    return influence(probe, inputs, key_part(inputs))[:, 0].T
