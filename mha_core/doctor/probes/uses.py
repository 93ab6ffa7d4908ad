"""The ways a module may be used, and what is seen in one use: its answer, its operations, the attention found in them.

Holds the sizes of the probes and the masks that are valid in all of them; no row is ever wholly masked here.
Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mha_core.doctor.probes.lengths import length_failure, usable_lengths
from mha_core.doctor.subject import Answer, Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.tracing import Trace, traced


@dataclass(frozen=True)
class Use:
    """One way to call a module.

    Attributes:
        words: "eval, weights wanted, mask over keys".
        mode: training, weights, dropout.
        keep_keys: (B, Sk) bool, True = may attend. keep_pairs: (Sq, Sk) bool, True = may attend.
    """

    words: str
    mode: Mode = field(default_factory=Mode)
    keep_keys: Tensor | None = None
    keep_pairs: Tensor | None = None

    @property
    def masked(self) -> bool:
        """Whether a mask is given."""
        return self.keep_keys is not None or self.keep_pairs is not None


@dataclass(frozen=True)
class Sight:
    """What one call showed. `cores` is empty where no attention was recognised."""

    use: Use
    answer: Answer
    trace: Trace
    cores: tuple[Core, ...]


_LENGTHS: WeakKeyDictionary[Subject, int] = WeakKeyDictionary()


def probe_sizes(subject: Subject) -> tuple[int, int]:
    """Give a batch size and a length that differ from each other and from the number of heads, where it takes that.

    Raises:
        ModuleFailure: no number of tokens works.
    """
    batch, usual = (3 if subject.num_heads == 2 else 2), (7 if subject.num_heads == 5 else 5)
    if subject not in _LENGTHS:
        length = usable_lengths(subject, (usual,), batch=batch)[0]
        _LENGTHS[subject] = subject.inputs(1, length).query.shape[1]  # a module bound to one length gets that
    return batch, _LENGTHS[subject]


def takes_length(subject: Subject, length: int, batch: int = 2) -> bool:
    """Whether the module can be called with so many tokens."""
    fits = subject.inputs(1, length).query.shape[1] == length
    return fits and length_failure(subject, length, batch=batch) is None


def key_mask(batch: int, k_len: int) -> Tensor:
    """Hide the last key of every other sample, the first one included. (B, Sk) bool."""
    keep = torch.ones(batch, k_len, dtype=torch.bool)
    keep[::2, -1] = False
    return keep


def pair_mask(q_len: int, k_len: int) -> Tensor:
    """Hide what lies ahead, the last query aligned with the last key. (Sq, Sk) bool."""
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(max(k_len - q_len, 0))


Masks = tuple[str, Tensor | None, Tensor | None]


def mask_choices(subject: Subject, batch: int, q_len: int, k_len: int) -> Iterator[Masks]:
    """Give what masks the module accepts: words, keep_keys, keep_pairs.

    A mask that makes a plain call raise is left out: the checks of masks tell of it.
    """
    keys, pairs = key_mask(batch, k_len), pair_mask(q_len, k_len)
    yield "no mask", None, None
    choices: list[Masks] = []
    if subject.key_mask:
        choices.append(("mask over keys", keys, None))
    if subject.pair_mask:
        choices.append(("mask over pairs", None, pairs))
    if subject.key_mask and subject.pair_mask:
        choices.append(("both masks", keys, pairs))
    inputs = subject.inputs(batch, q_len, None if k_len == q_len else k_len)
    for words, keep_keys, keep_pairs in choices:
        if subject.accepts(keep_keys, keep_pairs) and _runs(subject, inputs, keep_keys, keep_pairs):
            yield words, keep_keys, keep_pairs


def _runs(subject: Subject, inputs: Inputs, keep_keys: Tensor | None, keep_pairs: Tensor | None) -> bool:
    """Whether a call with this mask works, with gradients: the fused path torch takes without them accepts anything."""
    with torch.enable_grad():
        try:
            subject.call(inputs, keep_keys=keep_keys, keep_pairs=keep_pairs)
        except ModuleFailure:
            return False
    return True


def uses(subject: Subject, batch: int, q_len: int, k_len: int | None = None, *, training: bool = True) -> list[Use]:
    """List the ways to call the module: eval and train (without dropout), weights wanted or not, each mask."""
    found = []
    for trains in (False, True) if training else (False,):
        for weights in (False, True):
            for mask_words, keys, pairs in mask_choices(subject, batch, q_len, k_len or q_len):
                mode = Mode(training=trains, weights=weights, dropout=0.0 if trains else None)
                words = f"{'train' if trains else 'eval'}, weights {'' if weights else 'not '}wanted, {mask_words}"
                found.append(Use(words, mode, keys, pairs))
    return found


def answer_of(subject: Subject, inputs: Inputs, use: Use, module: nn.Module | None = None, *, seed: int = 0) -> Answer:
    """Call the module in one way."""
    return subject.call(
        inputs, keep_keys=use.keep_keys, keep_pairs=use.keep_pairs, mode=use.mode, module=module, seed=seed
    )


def look(subject: Subject, inputs: Inputs, use: Use, module: nn.Module | None = None, *, seed: int = 0) -> Sight:
    """Call the module in one way and watch its operations."""
    with traced(subject.files) as trace:
        answer = answer_of(subject, inputs, use, module, seed=seed)
    return Sight(use, answer, trace, cores(trace))


def sights(subject: Subject, inputs: Inputs, ways: list[Use]) -> list[Sight]:
    """Watch several uses. One in training that raises is left out: `mode_round_trip` tells of it."""
    seen = []
    for use in ways:
        try:
            seen.append(look(subject, inputs, use))
        except ModuleFailure:
            if not use.mode.training:
                raise
    return seen


def row_kept(use: Use, output: Tensor) -> Tensor:
    """Tell which query rows are real tokens, where queries and keys are the same tokens. (B, Sq) bool."""
    keep = use.keep_keys
    same = keep is not None and keep.shape == output.shape[:2]
    return keep if same and keep is not None else torch.ones(output.shape[:2], dtype=torch.bool)


def difference(one: Tensor, other: Tensor, rows: Tensor | None = None) -> float:
    """Give the largest difference relative to the largest value; inf where shapes or NaN differ. rows (B, Sq) bool."""
    if one.shape != other.shape:
        return float("inf")
    one, other = one.detach().double(), other.detach().double()
    if rows is not None:
        one, other = one[rows], other[rows]
    both_nan = one.isnan() & other.isnan()
    gap = (one - other).abs().masked_fill(both_nan | (one == other), 0.0)
    if not gap.numel():
        return 0.0
    size = torch.nan_to_num(other, nan=0.0, posinf=0.0, neginf=0.0).abs().max().clamp_min(1e-6)
    relative = float(gap.max() / size)
    return relative if relative == relative else float("inf")
