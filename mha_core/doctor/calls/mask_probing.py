"""Finds how a module's mask arguments are written, by trying forms and watching which keys still move which outputs.

A form counts as right where hidden keys lose all influence and visible ones keep theirs. Where no form is right (the
module may be broken, that is why it is here) the polarity that hides better is taken, then what source and names say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.doctor.calls.convention import Answer, Convention, Request
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.key_influence import influence, moved_by_key
from mha_core.doctor.calls.mask_forms import LENGTH_SHAPES, SHAPES, MaskUse, Scope

Probe = Callable[[Convention, Request], Answer]
KINDS_TRIED = ("keep", "hide", "add", "int", "one", "add_min", "one_hidden")
CLEAR = 3.0
COLUMNS_FOR_A_LEAK = 3
BROKEN = 1e6  # "hidden influence" of a form that leaves NaN


@dataclass(frozen=True)
class Tried:
    """A form the module accepted: hidden and visible influence against what they are without a mask."""

    use: MaskUse
    hidden: float
    visible: float
    right: bool

    @property
    def contrast(self) -> float:
        """How many times less influence hidden keys keep than visible ones."""
        return (self.visible + 1e-9) / (self.hidden + 1e-9)


@dataclass(frozen=True)
class Question:
    """What is probed: the module behind `probe`, its convention, sizes that differ from one another, the stream."""

    probe: Probe
    convention: Convention
    request: Request
    free: Tensor
    output: Tensor
    stream: str = "key"


def question(probe: Probe, convention: Convention, request: Request, stream: str = "key") -> Question:
    """Measure the influence without masks once."""
    free = influence(lambda r: probe(convention, r), request, stream)
    return Question(probe, convention, request, free, probe(convention, request).output, stream)


def try_argument(
    asked: Question, argument: str, scope: Scope, kinds: Sequence[str], shapes: Sequence[str] = ()
) -> list[Tried]:
    """Try every shape (of `shapes`, where given) and kind of one scope; stops at the first form that is right."""
    found: list[Tried] = []
    keep = pattern(asked, scope)
    for shape in (one for one in SHAPES[scope] if not shapes or one in shapes):
        for kind in ("lengths",) if shape in LENGTH_SHAPES else kinds:
            if (kind == "lengths") != (shape in LENGTH_SHAPES) or (kind == "lengths" and "lengths" not in kinds):
                continue
            use = MaskUse(argument, scope, shape, kind)
            tried = _try(asked, use, lengths_pattern(keep) if kind == "lengths" else keep)
            if tried is not None:
                found.append(tried)
                if tried.right:
                    return found
    return found


def pattern(asked: Question, scope: Scope) -> Tensor:
    """Hide a third to a half of the keys, differently in every sample and row; every row keeps and loses some."""
    batch, q_len, k_len = asked.free.shape
    generator = torch.Generator().manual_seed(3)
    shape = {"keys": (batch, k_len), "pairs": (q_len, k_len), "sample_pairs": (batch, q_len, k_len)}[scope]
    order = torch.rand(shape, generator=generator).argsort(-1)
    hidden = 2 + torch.arange(shape[-2]).remainder(max(1, k_len // 2 - 1))
    keep = order >= hidden.unsqueeze(-1)
    if scope != "keys" and q_len == k_len:  # a token that may not see itself can leave its row empty
        keep |= torch.eye(q_len, dtype=torch.bool)
    return keep


def lengths_pattern(keep: Tensor) -> Tensor:
    """Give a pattern with as many keys per row, all at the start."""
    return torch.arange(keep.shape[-1]) < keep.sum(-1, keepdim=True)


def _try(asked: Question, use: MaskUse, keep: Tensor) -> Tried | None:
    """Give what a form does, None where the module does not take it."""
    convention = replace(
        asked.convention,
        masks=(use,),
        self_masks=(),
        unmasked=tuple(entry for entry in asked.convention.unmasked if entry.argument != use.argument),
    )
    keys, pairs = (keep, None) if use.scope == "keys" else (None, keep)
    request = replace(asked.request, keep_keys=keys, keep_pairs=pairs)
    whole = _full(keep, use.scope, asked)
    columns = moved_by_key(lambda r: asked.probe(convention, r), request, asked.stream)
    found = torch.full_like(asked.free, float("nan"))
    judged: Tried | None = None
    try:
        if torch.equal(next(columns), asked.output):
            return Tried(use, 1.0, 1.0, False)  # nothing became of the mask
        for place, column in enumerate(columns):
            found[..., place] = column
            if place >= COLUMNS_FOR_A_LEAK - 1:
                judged = _judged(use, found, whole, asked)
                if judged.hidden > 1e-2:
                    return judged
    except ModuleFailure:
        return None
    return judged


def _full(keep: Tensor, scope: Scope, asked: Question) -> Tensor:
    if scope == "keys":
        return keep.unsqueeze(1).expand(asked.free.shape)
    return keep.expand(asked.free.shape)


def _judged(use: MaskUse, found: Tensor, keep: Tensor, asked: Question) -> Tried:
    """Compare hidden and visible influence over the columns found so far."""
    reference = asked.free[asked.free > 0].median() if bool((asked.free > 0).any()) else torch.tensor(1.0)
    tried = torch.zeros_like(keep)
    tried[..., : int((~found.isnan()).flatten(0, 1).any(0).sum())] = True
    support = tried & (asked.free > 1e-6 * reference)
    itself = asked.free.isnan()
    if use.scope == "keys" and bool(itself.any()):
        support = support & keep.transpose(1, 2)  # rows of hidden tokens may hold anything
    filled = ((asked.free > 1e-6 * reference) | itself) & keep
    support = support & filled.any(-1, keepdim=True)  # so may rows that see nothing
    hidden, visible = found[support & ~keep], found[support & keep]
    if not bool(torch.isfinite(hidden).all()) or not bool(torch.isfinite(visible).all()) or not visible.numel():
        return Tried(use, BROKEN, 0.0, False)
    leak = float(hidden.max() / reference) if hidden.numel() else 0.0
    loud = float((visible > 1e-4 * reference).double().mean())
    right = leak < 1e-4 and loud > 0.9 and hidden.numel() > 0
    return Tried(
        use, float(hidden.mean() / reference) if hidden.numel() else 0.0, float(visible.mean() / reference), right
    )
