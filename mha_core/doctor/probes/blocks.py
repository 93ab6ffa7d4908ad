"""Parts of a fused matrix that never get a gradient, though the matrix as a whole does: q, k and v in one projection.

Axes: rows are output channels, columns input channels, or the other way round (GPT-2's Conv1D).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mha_core.doctor.causes.mistakes import CUTTING
from mha_core.doctor.probes.learning import History
from mha_core.doctor.report import Place
from mha_core.doctor.subject import Subject
from mha_core.doctor.traces.tracing import Trace

FEWEST = 4  # channels in a row: fewer may be units that a ReLU keeps silent
_TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Block:
    """Rows or columns `first` to `last`, counted from 0, of `size`."""

    name: str
    what: str
    first: int
    last: int
    size: int


def dead_block(subject: Subject, every: Mapping[str, History]) -> Block | None:
    """Find channels in a row, as many as a head has at least, that got a gradient in no use and no step."""
    fewest = max(subject.head_dim or FEWEST, FEWEST)
    first = next(iter(every.values()))
    rest: list[Block] = []
    for name in _projections(first):
        touched = [history.touched[name] for history in every.values() if name in history.touched]
        if not touched:
            continue
        reached = torch.stack(touched).any(0)
        for what, lines in (("rows", reached.any(1)), ("columns", reached.any(0))):
            run = _longest(lines)
            if run is not None and run[1] - run[0] + 1 >= fewest:
                return Block(name, what, *run, lines.numel())
            if run is not None and what == "rows" and run[1] == lines.numel() - 1:
                rest.append(Block(name, what, *run, lines.numel()))
    return _cut_off(subject, rest)


def _cut_off(subject: Subject, rest: list[Block]) -> Block | None:
    """Find the last rows of several projections that are one remainder: channels that no head takes."""
    for block in rest:
        alike = [one for one in rest if (one.first, one.size) == (block.first, block.size)]
        remainder = block.size % (subject.num_heads or 1)
        if len(alike) > 1 and remainder and block.size - block.first == remainder:
            return block
    return None


def cutting_line(trace: Trace, parameter: Tensor) -> Place | None:
    """Find the line that takes a part of what a projection gives, where that is the next step."""
    for projection in trace.used_by(parameter):
        for given in projection.outputs:
            for step in trace.used_by(given):
                if step.name in CUTTING and step.place is not None:
                    return step.place
    return None


def _projections(history: History) -> list[str]:
    """List the matrices that multiply activations; tables whose rows are looked up may stay untouched."""
    tables = {id(p) for part in history.module.modules() if isinstance(part, _TABLES) for p in part.parameters()}
    found = []
    for name, parameter in history.module.named_parameters():
        users = {step.name for step in history.trace.used_by(parameter)}
        multiplied = users & {"linear", "addmm", "matmul", "t", "T", "mT", "transpose", "multi_head_attention_forward"}
        if parameter.dim() == 2 and id(parameter) not in tables and multiplied:
            found.append(name)
    return found


def _longest(lines: Tensor) -> tuple[int, int] | None:
    """Find the longest run of lines that nothing reached. lines: bool, True = reached."""
    best: tuple[int, int] | None = None
    start: int | None = None
    for index, reached in enumerate([*lines.tolist(), True]):
        if reached:
            if start is not None and (best is None or index - start > best[1] - best[0] + 1):
                best = (start, index - 1)
            start = None
        elif start is None:
            start = index
    return best
