"""Checkpoints of anybody: a file, an index of files or a folder, opened without running anything that is in it.

The list of tensors is made without reading their numbers. What is refused is refused with one sentence; what is left
out is said in the notes. The formats are in `formats`, folders and shards in `index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from mha_core.budget import spell_bytes
from mha_core.sources.checkpoints.index import choose_file, open_path, read_object
from mha_core.sources.checkpoints.parts import Contents, Format, TensorInfo, clean, refuse

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]

MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        name: of the file or folder.
        config: config.json beside the file, or the one given; None where there is none or it is not usable.
        notes: one sentence each: entries that are not tensors, what was left out, which file was taken.
    """

    name: str
    config: Mapping[str, Any] | None
    notes: tuple[str, ...]
    contents: Contents = field(repr=False)

    @property
    def format(self) -> Format:
        """How the numbers are stored: "safetensors" or "torch"."""
        return self.contents.format

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor that can be read, by its name."""
        return self.contents.tensors

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The axes of every tensor, by its name."""
        return {name: info.shape for name, info in self.tensors.items()}

    def tensor(self, name: str) -> Tensor:
        """Read one tensor, as stored; a copy on the CPU.

        Raises:
            MhaError: field "checkpoint"; there is no such tensor, or it is too large or cannot be read.
        """
        if name not in self.tensors:
            raise refuse(self.name, f"has no tensor {clean(name, 60)!r}")
        return self.contents.read(name)


def _read_config(path: Path, was_asked_for: bool) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if not was_asked_for and not path.exists():
        return None, ()
    config = read_object(path, MAX_CONFIG_BYTES) if path.is_file() else None
    note = f"{clean(path.name)} is not used: it is not an object of JSON of at most {spell_bytes(MAX_CONFIG_BYTES)}"
    return config, () if config is not None else (note,)


def open_checkpoint(path: Path | str, *, config: Path | None = None) -> Checkpoint:
    """Open a checkpoint: .safetensors, a file of torch.save, an index of shards, or a folder with one of them.

    Args:
        path: of the file or folder. The content decides what it is, not its ending.
        config: a model's config.json; None means the one beside the file.

    Raises:
        MhaError: field "checkpoint", one sentence without the folder's name. Nothing of the file was run.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    file, chosen = choose_file(path) if is_folder else (path, ())
    contents = open_path(file)
    beside, about_config = _read_config(config or file.parent / "config.json", config is not None)
    name = clean(path.resolve().name if is_folder else path.name)
    return Checkpoint(name, beside, (*chosen, *contents.notes, *about_config), contents)
