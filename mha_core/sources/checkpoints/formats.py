"""One checkpoint file: its content says what it is, whatever it is called, and what is not read is named.

Which file of a folder is taken, and several files as one, is `index`.
"""

from __future__ import annotations

import io
import os
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from mha_core.errors import MhaError
from mha_core.sources.checkpoints.parts import Contents, refuse
from mha_core.sources.checkpoints.safetensors_file import looks_like_safetensors, open_safetensors
from mha_core.sources.checkpoints.torch_file import is_pickle, is_torch_zip, open_torch

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
ARCHIVE = "is a packed archive: unpack it and give the file inside"
FOREIGN = {  # how files begin that people take for checkpoints of torch
    b"GGUF": "is a GGUF file, which is not read here; give the safetensors file that it was made from",
    b"\x89HDF\r\n\x1a\n": "is an HDF5 file (Keras), which is not read here; save it as safetensors or by torch.save",
    b"\x93NUMPY": "is a NumPy array, not a state dict of named tensors",
    b"version https://git-lfs": "is a pointer of Git LFS, not the weights: fetch them with git lfs pull",
    b"\x1f\x8b": ARCHIVE,
    b"BZh": ARCHIVE,
    b"\xfd7zXZ\0": ARCHIVE,
    b"7z\xbc\xaf": ARCHIVE,
    b"Rar!": ARCHIVE,
    b"\x28\xb5\x2f\xfd": ARCHIVE,
}
FOREIGN_ENDINGS = {
    ".onnx": "is an ONNX file, which is not read here; save the model as safetensors or by torch.save",
    ".msgpack": "is a msgpack file (Flax), which is not read here; save it as safetensors or by torch.save",
    ".tflite": "is a TensorFlow Lite file, which is not read here",
    ".npz": "is an archive of NumPy arrays, which is not read here; save it as safetensors or by torch.save",
    ".tar": ARCHIVE,
}
PAGE = "is a web page, not a checkpoint: the download probably needs a login or another address"


def beginning_of(path: Path) -> bytes:
    """Read the first bytes of a file.

    Raises:
        MhaError: field "checkpoint"; it is not there, is not an ordinary file, is empty or may not be read.
    """
    try:
        is_ordinary = stat.S_ISREG(os.stat(path).st_mode)
        with path.open("rb") if is_ordinary else nullcontext(io.BytesIO()) as file:
            beginning = file.read(512)
    except FileNotFoundError:
        raise refuse(path, "does not exist", "a file, an index file or a folder") from None
    except (OSError, ValueError) as error:  # no right to read it, or no possible path
        raise refuse(path, "cannot be read: no permission, or not a possible path") from error
    if not is_ordinary:
        raise refuse(path, "is not an ordinary file")
    if not beginning:
        raise refuse(path, "is empty: the download or copy did not finish")
    return beginning


def is_json(beginning: bytes) -> bool:
    """Whether a file that begins so is text with an object of JSON."""
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and all(byte >= 32 or byte in b"\t\r\n" for byte in beginning[:8])


def _foreign(path: Path, beginning: bytes) -> MhaError | None:
    """Name a format that is not read here."""
    text = beginning.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return refuse(path, PAGE)
    for magic, sentence in FOREIGN.items():
        if beginning.startswith(magic):
            return refuse(path, sentence)
    if path.suffix.lower() in FOREIGN_ENDINGS:
        return refuse(path, FOREIGN_ENDINGS[path.suffix.lower()])
    return None


def _with_note(contents: Contents, note: str) -> Contents:
    return replace(contents, notes=(note, *contents.notes)) if note else contents


def open_file(path: Path) -> Contents:
    """Open one file of tensors.

    Raises:
        MhaError: field "checkpoint", one clear sentence.
    """
    beginning, ending = beginning_of(path), path.suffix.lower()
    foreign = _foreign(path, beginning)
    if foreign:
        raise foreign
    if is_torch_zip(beginning) or is_pickle(beginning):
        kind = "zip file" if is_torch_zip(beginning) else "pickle"
        note = f"{path.name} is a torch {kind}, read as such" if ending == ".safetensors" else ""
        return _with_note(open_torch(path, is_torch_zip(beginning)), note)
    if looks_like_safetensors(beginning):
        note = f"{path.name} is a safetensors file, read as such" if ending in TORCH_ENDINGS else ""
        return _with_note(open_safetensors(path), note)
    raise refuse(path, "is neither a safetensors file nor one that torch.save wrote", "safetensors or torch.save")
