"""Files written by torch.save: a zip archive (since torch 1.6) or a chain of pickles before that.

What the file claims is checked first, without unpickling (`pickles`): that the archive is as torch writes it,
stored and not compressed, one directory, no two entries in one place; that every storage is as long as it says. Only
then torch.load(weights_only=True) reads it, mapped into memory where the format allows. Nothing else ever unpickles.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from mha_core.sources.checkpoints.described import Stored, UnreadableError
from mha_core.sources.checkpoints.parts import Contents, TensorInfo, check_size, refuse
from mha_core.sources.checkpoints.pickles import DAMAGE, follow
from mha_core.sources.checkpoints.tree import find_weights

MAX_PICKLE_BYTES = 64 * 2**20  # a model of 1,000 tensors takes about 100 kB
MAX_RECORD_BYTES = 1024  # of the small entries: byte order, version
MAX_ENTRIES = 1_000_000
LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled number 0x1950a86a20f9469cfc6c, torch/serialization.py
LEGACY_PROTOCOL = 1001
DAMAGED = "is damaged: the archive is not as torch.save writes it"
LOADING = (  # what torch.load raises for files that it cannot read
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, EOFError, OSError, MemoryError,
    OverflowError, ImportError, struct.error, pickle.UnpicklingError,
)  # fmt: skip


def _check_end(file: BinaryIO, size_bytes: int) -> None:
    """Demand one directory at the very end, so that every reader of zip files finds the same one.

    Source: the zip format, end of central directory record and its 64-bit form.
    """
    start = max(size_bytes - 98, 0)
    file.seek(start)
    tail = file.read()
    end, locator, wide = tail[-22:], tail[-42:-22], tail[-98:-42]
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[20:] != b"\0\0":
        raise UnreadableError("is a zip file that is cut off or has something behind its end")
    length, begin = struct.unpack("<II", end[12:20])
    first_record = size_bytes - 22
    if locator[:4] == b"PK\6\7":
        first_record = size_bytes - 98
        if len(wide) < 56 or wide[:4] != b"PK\6\6" or struct.unpack("<Q", locator[8:16])[0] != first_record:
            raise UnreadableError(DAMAGED)
        length, begin = struct.unpack("<QQ", wide[40:56])
    if begin + length != first_record:
        raise UnreadableError(DAMAGED)


def _check_entries(archive: zipfile.ZipFile, size_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Check that no entry is compressed, hidden, doubled or lies on another. Gives them without their folder."""
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise UnreadableError(f"is an archive of {len(entries):,} entries")
    folder = entries[0].filename.split("/")[0] + "/" if entries else ""
    named = {entry.filename.removeprefix(folder): entry for entry in entries}
    if "constants.pkl" in named:
        raise UnreadableError("is a TorchScript program; save the weights alone: torch.save(model.state_dict(), path)")
    if "data.pkl" not in named or named["data.pkl"].filename != f"{folder}data.pkl":
        raise UnreadableError("is a zip file, but not one that torch.save wrote")
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise UnreadableError("is a compressed archive; torch.save does not compress, so it is not unpacked here")
        if entry.header_offset < end or entry.flag_bits & 1 or entry.orig_filename != entry.filename:
            raise UnreadableError(DAMAGED)
        end = entry.header_offset + 30 + len(entry.filename.encode()) + entry.file_size
    if end > size_bytes or len({entry.filename.lower() for entry in entries}) < len(entries):
        raise UnreadableError(DAMAGED)
    return named


def _follow_zip(path: Path) -> Any:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        _check_end(file, size_bytes)
        with zipfile.ZipFile(file) as archive:
            entries = _check_entries(archive, size_bytes)
            check_size(path, "unpacks to", sum(entry.file_size for entry in entries.values()))
            for name, entry in entries.items():
                limit = MAX_PICKLE_BYTES if name == "data.pkl" else MAX_RECORD_BYTES
                if not name.startswith("data/") and entry.file_size > limit:
                    raise UnreadableError(
                        f"has an entry {name[:40]} of {entry.file_size:,} bytes; {limit:,} are allowed"
                    )
            root, storages = follow(io.BytesIO(archive.read(entries["data.pkl"])))
    for key, stored in storages.items():
        record = entries.get(f"data/{key}")
        if record is None or record.file_size < stored.size_bytes:
            raise UnreadableError("claims more stored numbers than it holds")
    return root


def _follow_legacy(path: Path) -> Any:
    """Follow the pickles of an old file: magic number, version, machine, the object, keys; then the numbers."""
    size_bytes = path.stat().st_size
    check_size(path, "takes", size_bytes)
    with path.open("rb") as file:
        head = io.BytesIO(file.read(MAX_PICKLE_BYTES))
        if head.read(2 + len(LEGACY_MAGIC))[2:] != LEGACY_MAGIC:  # two bytes say which protocol
            raise UnreadableError("is a pickle that torch.save did not write; it is not opened")
        if follow(head)[0] != LEGACY_PROTOCOL or not isinstance(follow(head)[0], dict):
            raise UnreadableError("was saved by a version of torch that is not known")
        root, storages = follow(head)
        keys, _ = follow(head)
        if not isinstance(keys, list) or set(map(str, keys)) != set(storages) or len(keys) != len(storages):
            raise UnreadableError("is damaged: its list of stored numbers is not complete")
        _check_stored(file, head.tell(), [storages[key] for key in keys], size_bytes)
    return root


def _check_stored(file: BinaryIO, start: int, storages: list[Stored], size_bytes: int) -> None:
    """Check that each run of numbers, written after its count, is as long as the pickle says."""
    for stored in storages:
        file.seek(start)
        count = file.read(8)
        start += 8 + stored.size_bytes
        if len(count) < 8 or struct.unpack("<q", count)[0] != stored.numel or start > size_bytes:
            raise UnreadableError("is cut off or claims more stored numbers than it holds")


def _load(path: Path, is_zip: bool) -> Any:
    """Let torch read a file whose claims were checked."""
    if path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    with path.open("rb") as file:  # by its path torch would take it for what it is called
        return torch.load(file, map_location="cpu", weights_only=True)


def _reader(root: Any, paths: dict[str, tuple[Any, ...]]) -> Callable[[str], Tensor]:
    def read(name: str) -> Tensor:
        node = root
        for key in paths[name]:
            node = node[key]
        tensor: Tensor = node
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    return read


def open_torch(path: Path, is_zip: bool) -> Contents:
    """Open a file of torch.save.

    Raises:
        MhaError: field "checkpoint".
    """
    try:
        found, notes = find_weights(_follow_zip(path) if is_zip else _follow_legacy(path))
    except UnreadableError as error:
        raise refuse(path, str(error), "a state dict saved by torch.save") from None
    except (*DAMAGE, zipfile.BadZipFile, NotImplementedError) as error:
        raise refuse(path, "is cut off or damaged", "a state dict saved by torch.save") from error
    try:
        read = _reader(_load(path, is_zip), {name: keys for name, (keys, _) in found.items()})
    except LOADING as error:
        raise refuse(path, "cannot be read by torch.load(weights_only=True)", "a state dict") from error
    tensors = {
        name: TensorInfo(tensor.shape, str(tensor.dtype).removeprefix("torch."), tensor.size_bytes)
        for name, (_, tensor) in found.items()
    }
    return Contents("torch", tensors, read, notes)


def is_torch_zip(beginning: bytes) -> bool:
    """Whether a file that begins so is a zip archive, as torch.load decides."""
    return beginning.startswith(b"PK\3\4")


def is_pickle(beginning: bytes) -> bool:
    """Whether a file that begins so may be a pickle of protocol 2 to 5."""
    return beginning[:1] == pickle.PROTO and beginning[1:2] in (b"\2", b"\3", b"\4", b"\5")
