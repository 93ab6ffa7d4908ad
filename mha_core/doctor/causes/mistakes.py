"""The likely mistake behind a finding, asked of a watched call: what the trace cannot tell is no mistake's name.

Foreign code can hold anything, so a trace that cannot be read answers with "" and no line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from mha_core.doctor.causes.causes import mask_cause, softmax_cause, split_cause
from mha_core.doctor.causes.pointing import mask_line
from mha_core.doctor.probes.influence import Look
from mha_core.doctor.report import Place
from mha_core.doctor.subject import Subject
from mha_core.doctor.traces.walk import makers

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)
CUTTING = ("__getitem__", "getitem", "narrow", "split", "chunk", "index_select")


def mask_mistake(look: Look) -> Cause:
    """Name what is wrong with the mask of the first attention."""
    return _asked(mask_cause, look)


def mask_finding(look: Look) -> Cause:
    """Name what is wrong with the mask, with the line of the mask or of the attention where no mistake is known."""
    cause, where = mask_mistake(look)
    return cause, where or mask_line(look)


def split_mistake(subject: Subject, look: Look, batch: int, q_len: int, k_len: int | None = None) -> Cause:
    """Name what is wrong with the split or join of heads."""
    return _asked(split_cause, look, **_sizes(subject, batch, q_len, k_len))


def softmax_mistake(subject: Subject, look: Look, batch: int, q_len: int, k_len: int | None = None) -> Cause:
    """Name what is wrong with the softmax."""
    return _asked(softmax_cause, look, **_sizes(subject, batch, q_len, k_len))


def unequal_lengths(look: Look) -> Cause:
    """Name keys and values that are not equally many, and the line that shortened one of them.

    torch's fused attention takes them, and reads past the end of the shorter one.
    """
    for core in look.cores[:1]:
        keys, values = core.k.shape[-2], core.v.shape[-2]
        source = core.v_source if values < keys else core.k_source
        if keys == values or source is None:
            continue
        cuts = (step.place for step in makers(look.trace, source[0]) if step.name in CUTTING and step.place)
        return f"{keys} keys meet {values} values", next(cuts, core.values_place)
    return UNKNOWN


def first_named(*causes: Cause) -> Cause:
    """Take the first cause that has a name."""
    return next((cause for cause in causes if cause[0]), UNKNOWN)


def mixes_batch_in_training(subject: Subject) -> bool:
    """Tell whether batch normalisation is inside: in training it mixes samples and tokens, whatever attention does."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in subject.module.modules())


def _sizes(subject: Subject, batch: int, q_len: int, k_len: int | None) -> dict[str, int]:
    return {"batch": batch, "q_len": q_len, "k_len": k_len or q_len, "num_heads": subject.num_heads or 1}


def _asked(named: Callable[..., Cause], look: Look, **sizes: Any) -> Cause:
    try:
        return named(look.trace, look.cores[0], **sizes) if look.cores else UNKNOWN
    except Exception:  # the trace of foreign code may be anything
        return UNKNOWN
