"""Uploaded checkpoints on disk: few, bounded in size, gone when the process ends.

Each lies in a folder of its own under its key, made of its content, with its name made harmless.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from mha_core.budget import spell_bytes
from mha_core.errors import MhaError
from mha_core.sources.checkpoints.file import open_checkpoint
from mha_core.sources.checkpoints.parts import refuse

KEY_LENGTH = 16  # hexadecimal digits of the SHA-256
MAX_FILES = 8
MAX_TOTAL_BYTES = 2 * 2**30
MAX_NAME = 80

_lock = threading.Lock()
_files: OrderedDict[str, Path] = OrderedDict()  # least recently used first
_folder: tempfile.TemporaryDirectory[str] | None = None


def _harmless(name: str) -> str:
    """Keep letters, digits, dots and dashes of a file name, and its ending."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", re.split(r"[/\\]", name)[-1])[-MAX_NAME:].lstrip("._-")
    return plain or "checkpoint"


def _make_room(size_bytes: int) -> None:
    """Drop the least recently used files until one more fits."""
    while _files and (len(_files) >= MAX_FILES or _total() + size_bytes > MAX_TOTAL_BYTES):
        _, path = _files.popitem(last=False)
        shutil.rmtree(path.parent, ignore_errors=True)


def _total() -> int:
    return sum(path.stat().st_size for path in _files.values() if path.is_file())


def _use(key: str) -> Path | None:
    """Find a file and mark it as just used."""
    path = _files.get(key)
    if path is None or not path.is_file():
        _files.pop(key, None)
        return None
    _files.move_to_end(key)
    return path


def keep(name: str, content: bytes) -> str:
    """Keep an uploaded checkpoint.

    Args:
        name: of the file, as its owner calls it. content: its bytes.

    Returns:
        Its key: the first 16 hexadecimal digits of its SHA-256. The same content has one key.

    Raises:
        MhaError: field "checkpoint"; too large, or not readable as a checkpoint. Nothing is kept then.
    """
    global _folder
    if len(content) > MAX_TOTAL_BYTES:
        raise refuse(
            name, f"has {spell_bytes(len(content))}; uploads of at most {spell_bytes(MAX_TOTAL_BYTES)} are kept"
        )
    key = hashlib.sha256(content).hexdigest()[:KEY_LENGTH]
    with _lock:
        if _use(key) is not None:
            return key
        _folder = _folder or tempfile.TemporaryDirectory(prefix="mha-lab-checkpoints-")
        arriving = Path(tempfile.mkdtemp(dir=_folder.name))
    path = arriving / _harmless(name)
    try:
        path.write_bytes(content)
        open_checkpoint(path)
    except BaseException:
        shutil.rmtree(arriving, ignore_errors=True)
        raise
    with _lock:
        if _use(key) is not None:  # somebody else was faster with the same content
            shutil.rmtree(arriving, ignore_errors=True)
            return key
        _make_room(len(content))
        _files[key] = path
    return key


def kept(key: str) -> Path:
    """Find a kept checkpoint by its key.

    Raises:
        MhaError: field "checkpoint"; it is not here (any more).
    """
    with _lock:
        path = _use(key)
    if path is None:
        problem = "this checkpoint is not on this server: upload it again"
        raise MhaError("checkpoint", key[:KEY_LENGTH], "the key of an uploaded file", problem=problem)
    return path
