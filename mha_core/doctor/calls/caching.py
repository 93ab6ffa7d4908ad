"""Key/value caches: finds the cache a module gives back, and goes on with it step by step."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls import calling
from mha_core.doctor.calls.convention import Answer, Convention, Request
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.knobs import copied
from mha_core.doctor.calls.returns import read, top
from mha_core.doctor.calls.signs import source_of

Start = Callable[[nn.Module], Any]


def empty_caches(module: nn.Module) -> list[Start]:
    """List what a first step can be given: nothing, the library's own cache, an empty dict or list."""
    starts: list[Start] = []
    if type(module).__module__.startswith("transformers."):
        cache = getattr(sys.modules.get("transformers.cache_utils"), "DynamicCache", None)
        if cache is not None:
            starts.append(lambda _: cache())
    if re.search(r"\.update\(\s*\w*k", source_of(module)):
        starts.append(lambda _: Growing())
    return [*starts, lambda _: None, lambda _: {}, lambda _: []]


class Growing:
    """A cache as transformers' layers are given one: `update` takes new keys and values and gives all there are.

    Tensors: (B, H, S, D).
    """

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int = 0, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind those of the layer."""
        if layer_idx in self.layers:
            old = self.layers[layer_idx]
            keys, values = torch.cat([old[0], keys], -2), torch.cat([old[1], values], -2)
        self.layers[layer_idx] = keys, values
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Count the tokens of a layer."""
        return self.layers[layer_idx][0].shape[-2] if layer_idx in self.layers else 0


def find_cache(module: nn.Module, convention: Convention, request: Request, files: tuple[str, ...]) -> Start | None:
    """Find the start after which a step gives a cache back; None where no cache can be used.

    The second step, which goes on with it, may raise: then the module offers a cache and does not keep its word.
    """
    if convention.cache is None:
        return None
    for start in empty_caches(module):
        try:
            _, cache = step(copied(module), convention, request, start(module), files)
        except ModuleFailure:
            continue
        if cache is not None and _holds(cache):
            return start
    return None


def step(
    module: nn.Module, convention: Convention, request: Request, cache: Any, files: tuple[str, ...] = (), seed: int = 0
) -> tuple[Answer, Any]:
    """Make one step and give the cache after it, which may be the same object, changed in place.

    Raises:
        ModuleFailure: the module raised, or gave no cache back.
    """
    made = replace(request, cache=cache, caching=True)
    result = calling.seeded(seed, lambda: calling.raw(module, convention, made, files))
    answer = read(result, convention, made)
    returned = _returned(result, answer)
    if made.cache is not None and type(returned) is not type(made.cache) and _holds(made.cache):
        returned = made.cache  # kept in place; whatever else came back is no cache
    return answer, returned


def _returned(result: Any, answer: Answer) -> Any:
    """Give the cache among what came back: by name, else the last thing that holds tensors."""
    entries = list(top(result))
    named = [value for name, value in entries if re.search("cache|past|present|kv", name) and value is not None]
    if named:
        return named[0]
    rest = [value for value in answer.extra if _holds(value)]
    containers = [value for value in rest if not isinstance(value, Tensor)]
    if containers:
        return containers[-1]
    return tuple(rest) if len(rest) > 1 else rest[0] if rest and rest[0].dim() >= 4 else None


def _holds(cache: Any) -> bool:
    """Tell whether something holds tensors, however deep."""
    if isinstance(cache, Tensor):
        return cache.numel() > 0
    if isinstance(cache, dict):
        return any(_holds(value) for value in cache.values())
    if isinstance(cache, tuple | list):
        return any(_holds(value) for value in cache)
    if hasattr(cache, "get_seq_length"):
        return bool(cache.get_seq_length() > 0)
    return hasattr(cache, "__dict__") and any(_holds(value) for value in vars(cache).values())
