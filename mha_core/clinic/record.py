"""What a mistake is: wrong lines and right lines of one and the same layer, and what there is to say about them.

The lines are source text that is run as it stands (mha_core.clinic.recipe); nothing shown is a copy of what runs.

Letters: B sequences, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from mha_core.doctor.report import CheckId

Kind = Literal[
    "head_split",
    "divisibility",
    "cross_dims",
    "mask_shape",
    "mask_polarity",
    "mask_dtype",
    "mask_value",
    "full_mask",
    "causal",
    "dropout",
    "softmax_dim",
    "scale",
    "qkv_layout",
    "gqa",
    "init",
    "grad",
    "weights_reading",
    "batch_first",
    "flops",
    "memory",
    "amp",
    "position",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Symptom = Literal["loss_nan", "shape_error", "trains_poorly", "batch_changes", "slow_or_memory", "leaks", "nothing"]
SYMPTOMS: dict[Symptom, str] = {
    "loss_nan": "loss is NaN",
    "shape_error": "error of shape or dtype",
    "trains_poorly": "trains, but poorly",
    "batch_changes": "batch changes the result",
    "slow_or_memory": "slow or out of memory",
    "leaks": "too good to be true",
    "nothing": "nothing visible",
}
Side = Literal["wrong", "right"]
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: in links and downloads. title: a few words for a list. kind: of the reports it stands for.
        symptoms: what a person would come with.
        steps: the steps of the recipe that its lines take the place of.
        wrong, right: the lines, Python source.
        needs: what an experiment must have for it to show, by name (mha_core.clinic.needs).
        check: the check of the doctor that finds it, None where only a reference or a reading finds it.
        notice: how to notice it. fix: what to write instead. lesson: what to take along.
        reports: numbers that the lines themselves make: variable, what it is, unit.
        evaluating: both sides run as after `eval()`.
        trains: a few steps of gradient descent tell more than one.
    """

    name: str
    title: str
    kind: Kind
    symptoms: tuple[Symptom, ...]
    steps: tuple[str, ...]
    wrong: str
    right: str
    notice: str
    fix: str
    lesson: str
    needs: tuple[str, ...] = ()
    check: CheckId | None = None
    reports: tuple[tuple[str, str, str], ...] = field(default=())
    evaluating: bool = False
    trains: bool = False

    def lines(self, side: Side) -> str:
        """Give the lines of one side."""
        return self.wrong if side == "wrong" else self.right

    @property
    def changes_the_layer(self) -> bool:
        """Whether the layer itself is broken, not only what is read from it or said about it."""
        return not set(self.steps) <= {"read", "report"}
