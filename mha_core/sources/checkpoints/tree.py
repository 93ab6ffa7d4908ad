"""Which of a checkpoint's nested dictionaries is the state dict, and the tensors in it by their full names.

A trainer's file holds the weights under a word of its own, beside an optimizer whose tensors look like weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mha_core.sources.checkpoints.described import Described, UnreadableError
from mha_core.sources.checkpoints.parts import MAX_TENSORS, clean, name_problem, say_left_out

WRAPPERS = (
    "state_dict", "model_state_dict", "model", "module", "network", "net", "weights", "params", "ema_state_dict",
    "ema", "model_ema", "params_ema",
)  # fmt: skip
OPTIMIZER = ("optim", "scheduler", "scaler")
MAX_DEPTH = 16
MAX_WRAPS = 3
MAX_VISITED = 300_000

Path = tuple[Any, ...]
Found = dict[str, tuple[Path, Described]]


@dataclass(frozen=True)
class Leaf:
    """What one entry below a dictionary is: its keys from the root, and a tensor or something else."""

    path: Path
    value: Any
    of_optimizer: bool

    @property
    def is_weight(self) -> bool:
        return isinstance(self.value, Described) and not self.of_optimizer


def _belongs_to_optimizer(key: Any, value: Any) -> bool:
    """By the word it is kept under, or by the two entries that every torch optimizer has."""
    named = isinstance(key, str) and key.lower().startswith(OPTIMIZER) and not isinstance(value, Described)
    return named or (isinstance(value, dict) and {"state", "param_groups"} <= set(value))


def _leaves(node: Any, start: Path = ()) -> Iterator[Leaf]:
    """Walk nested dictionaries; a list is one entry, unless an optimizer's.

    Raises:
        UnreadableError: nested too deep, or too much in all (one dictionary may stand in many places).
    """
    waiting: list[tuple[Path, Any, bool]] = [(start, node, _belongs_to_optimizer(None, node))]
    for _ in range(MAX_VISITED):
        if not waiting:
            return
        path, value, of_optimizer = waiting.pop()
        if not isinstance(value, dict):
            yield Leaf(path, value, of_optimizer)
            continue
        if len(path) > MAX_DEPTH:
            raise UnreadableError(f"nests dictionaries more than {MAX_DEPTH} deep")
        if len(waiting) + len(value) > MAX_VISITED:
            break
        below = [((*path, k), v, of_optimizer or _belongs_to_optimizer(k, v)) for k, v in value.items()]
        waiting.extend(reversed(below))
    raise UnreadableError(f"has more than {MAX_VISITED:,} entries")


def _choose(root: dict[Any, Any]) -> Path:
    """Find the nested dictionary with the most tensors among those under a word that trainers use."""
    path: Path = ()
    node = root
    while len(path) < MAX_WRAPS:
        nested = {word: node[word] for word in WRAPPERS if isinstance(node.get(word), dict)}
        counts = {word: sum(leaf.is_weight for leaf in _leaves(value)) for word, value in nested.items()}
        best = max(counts, key=lambda word: counts[word], default="")
        if not best or counts[best] <= sum(isinstance(value, Described) for value in node.values()):
            break
        path, node = (*path, best), node[best]
    return path


def _word(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _collect(leaves: list[Leaf], depth: int) -> tuple[Found, list[str]]:
    """Name the tensors below a dictionary; the second result says of each that is not listed, why."""
    found: Found = {}
    left_out: list[str] = []
    for leaf in leaves:
        if not isinstance(leaf.value, Described):
            continue
        name = ".".join(map(_word, leaf.path[depth:]))
        problem = leaf.value.odd or name_problem(name, leaf.value.shape)
        problem = problem or ("name of another tensor" if name in found else "")
        if problem:
            left_out.append(problem)
        else:
            found[name] = (leaf.path, leaf.value)
    return found, left_out


def find_weights(root: Any) -> tuple[Found, tuple[str, ...]]:
    """Find the state dict in what a checkpoint holds.

    Returns:
        name -> (keys from the root, tensor), and notes.

    Raises:
        UnreadableError: there is none.
    """
    if isinstance(root, Described):
        raise UnreadableError("holds one tensor without a name, not a state dict")
    if not isinstance(root, dict):
        kind = "a list" if isinstance(root, list | tuple) else "one value"
        raise UnreadableError(f"holds {kind}, not a state dict of named tensors")
    chosen = _choose(root)
    leaves = list(_leaves(root))
    inside = [leaf for leaf in leaves if leaf.path[: len(chosen)] == chosen and not leaf.of_optimizer]
    found, left_out = _collect(inside, len(chosen))
    if not found:
        has_optimizer = any(leaf.of_optimizer for leaf in leaves)
        about = "the state of an optimizer and no weights" if has_optimizer else "no named tensors that can be read"
        raise UnreadableError(f"holds {about}{f' ({left_out[0]})' if left_out else ''}")
    if len(found) > MAX_TENSORS:
        raise UnreadableError(f"has {len(found):,} tensors; at most {MAX_TENSORS:,} are listed")
    notes = [f'the state dict is the entry "{clean(".".join(chosen))}"'] if chosen else []
    notes += say_left_out(left_out)
    optimizer = sum(leaf.of_optimizer for leaf in leaves)
    beside = sum(leaf.is_weight for leaf in leaves) - sum(leaf.is_weight for leaf in inside)
    others = len(leaves) - optimizer - sum(leaf.is_weight for leaf in leaves)
    notes += [f"tensors in other entries are left out: {beside:,}"] if beside else []
    notes += [f"entries of an optimizer or scheduler are left out: {optimizer:,}"] if optimizer else []
    notes += [f"entries that are not tensors are left out: {others:,}"] if others else []
    return found, tuple(notes)
