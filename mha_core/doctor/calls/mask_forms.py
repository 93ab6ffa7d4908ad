"""The forms a mask can have: which shape, and what its values mean.

A mask is thought of as `keep`, True = may attend: (B, Sk) over keys, (Sq, Sk) over pairs, (B, Sq, Sk) over pairs per
sample. `MaskUse.build` turns it into what one argument of one module wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scope = Literal["keys", "pairs", "sample_pairs"]
SHAPES: dict[Scope, tuple[str, ...]] = {
    "keys": ("(B, Sk)", "(B, 1, Sk)", "(B, 1, 1, Sk)", "(B,)", "(Sk, B)", "(B, Sk, 1)"),
    "pairs": ("(Sq, Sk)", "(1, Sq, Sk)", "(1, 1, Sq, Sk)", "(Sq,)"),
    "sample_pairs": ("(B, Sq, Sk)", "(B, 1, Sq, Sk)", "(B*H, Sq, Sk)", "(B, H, Sq, Sk)", "(B, Sq)"),
}
LENGTH_SHAPES = ("(B,)", "(Sq,)", "(B, Sq)")
KINDS: dict[str, str] = {
    "keep": "True = may attend",
    "hide": "True = hidden",
    "add": "0 = may attend, -inf = hidden",
    "add_min": "0 = may attend, the smallest float = hidden",
    "one": "1 = may attend, 0 = hidden",
    "int": "1 = may attend, 0 = hidden (integers)",
    "one_hidden": "1 = hidden, 0 = may attend",
    "lengths": "number of keys that may be attended",
}
HIDING = ("hide", "one_hidden")


@dataclass(frozen=True)
class MaskUse:
    """How one argument takes one kind of mask: its shape and the meaning of its values."""

    argument: str
    scope: Scope
    shape: str
    kind: str

    def __str__(self) -> str:
        return f"{self.argument} {self.shape}, {KINDS[self.kind]}"

    def fits(self, keep: Tensor) -> bool:
        """Tell whether this mask can be written in this form; lengths only tell how many first keys are kept."""
        return self.kind != "lengths" or bool((keep == _prefix(keep.sum(-1), keep.shape[-1])).all())

    def build(self, keep: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """Write `keep` in this form: (B, Sk), (Sq, Sk) or (B, Sq, Sk) by the scope."""
        if self.kind == "lengths":
            return keep.sum(-1)
        return _values(self.kind, _shaped(keep, self.shape, heads), dtype)


def _prefix(lengths: Tensor, k_len: int) -> Tensor:
    return torch.arange(k_len) < lengths.unsqueeze(-1)


def _shaped(keep: Tensor, shape: str, heads: int) -> Tensor:
    if shape == "(B*H, Sq, Sk)":
        return keep.repeat_interleave(heads, 0)
    if shape == "(B, H, Sq, Sk)":
        return keep.unsqueeze(1).expand(-1, heads, -1, -1).contiguous()
    if shape == "(Sk, B)":
        return keep.t().contiguous()
    views = {
        "(B, 1, Sk)": (slice(None), None),
        "(B, 1, 1, Sk)": (slice(None), None, None),
        "(B, Sk, 1)": (..., None),
        "(1, Sq, Sk)": (None,),
        "(1, 1, Sq, Sk)": (None, None),
        "(B, 1, Sq, Sk)": (slice(None), None),
    }
    return keep[views[shape]] if shape in views else keep


def _values(kind: str, keep: Tensor, dtype: torch.dtype) -> Tensor:
    if kind == "keep":
        return keep.clone()
    if kind == "hide":
        return ~keep
    if kind == "int":
        return keep.long()
    if kind in ("one", "one_hidden"):
        return (keep if kind == "one" else ~keep).to(dtype)
    low = float("-inf") if kind == "add" else torch.finfo(dtype).min
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, low)
