"""Which file of a folder is the checkpoint, and many files (shards) as one by their index.

An index may come from anywhere: its shards are looked for in its own folder and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mha_core.budget import spell_bytes
from mha_core.sources.checkpoints.formats import TORCH_ENDINGS, beginning_of, is_json, open_file
from mha_core.sources.checkpoints.parts import MAX_TENSORS, Contents, clean, refuse

MAX_INDEX_BYTES = 32 * 2**20
MAX_SHARDS = 1024
INDEX_ENDING = ".index.json"
FIRST = ("model.safetensors",)
AFTER_INDEX = ("pytorch_model.bin",)
NOT_WEIGHTS = ("optimizer", "scheduler", "training_args", "rng_state", "scaler", "random_states")


def read_object(path: Path, limit_bytes: int) -> dict[str, Any] | None:
    """Read an object of JSON; None where the file holds none or is longer than the limit."""
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
        found = json.loads(content) if len(content) <= limit_bytes else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _stays(path: Path, folder: Path) -> bool:
    """Whether a file, links followed, lies in the folder; or where the Hugging Face cache keeps what it links to."""
    home, found = folder.resolve(), path.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return found.parent in (home, blobs)


def _check_map(path: Path) -> dict[str, str]:
    """Read tensor name -> file name."""
    found = read_object(path, MAX_INDEX_BYTES)
    if found is None:
        raise refuse(path, f"is not an object of JSON of at most {spell_bytes(MAX_INDEX_BYTES)}", "an index of shards")
    named = found.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise refuse(path, 'is JSON without a "weight_map" from tensor names to file names', "an index of shards")
    if len(named) > MAX_TENSORS or len(set(named.values())) > MAX_SHARDS:
        raise refuse(path, f"names more than {MAX_TENSORS:,} tensors or {MAX_SHARDS:,} files")
    for file in set(named.values()):
        if (
            file != Path(file).name
            or "\\" in file
            or file in ("", ".", "..")
            or not file.isprintable()
            or len(file) > 255
        ):
            raise refuse(path, f"names the file {clean(file, 40)!r}, which is not a plain name of a file beside it")
        if not _stays(path.parent / file, path.parent):
            raise refuse(path, f"names the file {clean(file, 40)!r}, which is a link out of its folder")
    return named


def open_index(path: Path) -> Contents:
    """Open the shards that an index names; shards that are not there are said in the notes.

    Raises:
        MhaError: field "checkpoint"; the index or a shard cannot be read, or no shard is there.
    """
    named = _check_map(path)
    files = sorted(set(named.values()))
    there = [file for file in files if (path.parent / file).exists()]
    if not there:
        raise refuse(
            path, "is an index, and none of the files that it names is beside it; an index alone has no weights"
        )
    shards = {file: open_file(path.parent / file) for file in there}
    places = {name: file for name, file in named.items() if file in shards and name in shards[file].tensors}
    tensors = {name: shards[file].tensors[name] for name, file in places.items()}
    if not tensors:
        raise refuse(path, "is an index, but its files hold none of the tensors that it names")
    missing = [file for file in files if file not in shards]
    absent = sum(named[name] in shards and name not in places for name in named)
    unnamed = sum(name not in named for contents in shards.values() for name in contents.tensors)
    notes = [note for contents in shards.values() for note in contents.notes]
    if missing:
        lost = sum(file in missing for file in named.values())
        notes.append(f"{len(missing):,} of {len(files):,} files are not there, and with them {lost:,} tensors")
    notes += [f"tensors that the index names but its files do not hold: {absent:,}"] if absent else []
    notes += [f"tensors in the files that the index does not name, left out: {unnamed:,}"] if unnamed else []

    def read(name: str) -> Tensor:
        return shards[places[name]].read(name)

    return Contents(shards[there[0]].format, tensors, read, tuple(notes))


def choose_file(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Find the checkpoint in a folder, and say which was taken where there are several.

    Raises:
        MhaError: field "checkpoint"; there is none, or the folder may not be read.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise refuse(folder, "is a folder that cannot be read") from error
    indices = [name for name in names if name.endswith(INDEX_ENDING)]
    endings = (".safetensors", *TORCH_ENDINGS)
    singles = [name for ending in endings for name in names if name.endswith(ending)]
    singles = [name for name in singles if not name.startswith(NOT_WEIGHTS)]
    order = [*(n for n in FIRST if n in names), *indices, *(n for n in AFTER_INDEX if n in names), *singles]
    if not order:
        raise refuse(folder, f"is a folder without a checkpoint: no *{INDEX_ENDING} and none of *{', *'.join(endings)}")
    chosen = order[0]
    if not _stays(folder / chosen, folder):
        raise refuse(folder / chosen, "is a link out of its folder")
    shards: set[str] = set()
    if chosen in indices:
        shards = set(map(str, _weight_map(folder / chosen).values()))
    others = [name for name in dict.fromkeys(order[1:]) if name != chosen and name not in shards]
    note = f"{clean(chosen)} was taken; the folder also has {clean(', '.join(others), 120)}"
    return folder / chosen, (note,) if others else ()


def _weight_map(path: Path) -> Mapping[str, Any]:
    found = (read_object(path, MAX_INDEX_BYTES) or {}).get("weight_map")
    return found if isinstance(found, dict) else {}


def open_path(path: Path) -> Contents:
    """Open a file of tensors, or an index of such files.

    Raises:
        MhaError: field "checkpoint".
    """
    return open_index(path) if is_json(beginning_of(path)) else open_file(path)
