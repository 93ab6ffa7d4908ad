"""Independent copies of a module, and its dropout knobs: submodules, attributes and entries of a config."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_KNOB = re.compile(
    r"(\w*_)?(dropout|drop|pdrop|attn_drop|dropout_p|drop_rate|p_drop\w*|dropout_prob|dropout_rate)"
    r"(_p|_prob|_rate|_ratio)?|dropout\w*|\w*drop(out)?_(p|prob|rate)|p",
    re.IGNORECASE,
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: with sizes as small as a probe's, threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def copied(module: nn.Module, *, training: bool = False, dropout: float | None = None) -> nn.Module:
    """Give a deep copy in the mode asked for; kept results of earlier calls are cut from their graph first."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            for tensor in _tensors(value):
                if not tensor.is_leaf:
                    memo[id(tensor)] = tensor.detach().clone()
    twin = copy.deepcopy(module, memo)
    twin.train(training)
    if dropout is not None:
        set_dropout(twin, dropout)
    return twin


def set_dropout(module: nn.Module, rate: float) -> int:
    """Set every dropout knob of a module to a rate; gives how many there are."""
    count = 0
    for holder, name in dropout_knobs(module):
        object.__setattr__(holder, name, rate)  # also where a config is frozen
        count += 1
    return count


def dropout_knobs(module: nn.Module) -> Iterator[tuple[Any, str]]:
    """Name every float that is a dropout rate: (holder, attribute)."""
    seen: set[int] = set()
    for part in module.modules():
        holders = [part, *(value for name, value in vars(part).items() if _is_config(name, value))]
        for holder in holders:
            if id(holder) in seen:
                continue
            seen.add(id(holder))
            for name, value in list(vars(holder).items()):
                is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
                if is_rate and _KNOB.fullmatch(name) and (name != "p" or "drop" in type(holder).__name__.lower()):
                    yield holder, name


def _is_config(name: str, value: object) -> bool:
    return (
        "config" in name.lower() or name.lower() in ("cfg", "args", "params", "hparams")
        if hasattr(value, "__dict__") and not isinstance(value, nn.Module | type)
        else False
    )


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
