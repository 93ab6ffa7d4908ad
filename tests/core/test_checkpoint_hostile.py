"""Malformed and hostile files: one clear sentence or a right reading, nothing run, memory and time bounded.

The files and the process that opens them are in hostile_checkpoints.py. One process opens all of them under a limit of
3 GiB above what it takes with torch loaded: a crash or an unknown exception ends it, and the count is then too small.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIN_FILES = 200
MAX_MESSAGE = 400
MAX_SECONDS = 5.0  # for one file; the slowest takes about 1 s on an idle core
MAX_GROWN_BYTES = 2**30

Outcome = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[Outcome]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.hostile_checkpoints", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes(lines: list[Outcome]) -> list[Outcome]:
    return lines[:-1]


def family(outcome: Outcome) -> str:
    return str(outcome["file"]).split("-")[0]


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome["file"]: outcome for outcome in outcomes}


def test_every_family_is_there(outcomes: list[Outcome]) -> None:
    counts = Counter(map(family, outcomes))
    assert sum(counts.values()) > 3 * MIN_FILES
    least = {"code": 150, "cut": 70, "flip": 120, "header": 25, "length": 10, "claim": 100, "zip": 30, "index": 25}
    assert {name: counts[name] for name in least if counts[name] < least[name]} == {}


def test_sound_files_are_read(outcomes: list[Outcome]) -> None:
    """Without these the rest would pass by refusing everything."""
    sound = [outcome for outcome in outcomes if family(outcome) == "control"]
    assert len(sound) == 5
    assert [outcome for outcome in sound if "opened" not in outcome or outcome["notes"]] == []
    assert {outcome["opened"] for outcome in sound} == {1, 2}


def test_nothing_was_run(outcomes: list[Outcome], folder: Path) -> None:
    assert not (folder / "canary").exists()
    assert [outcome["file"] for outcome in outcomes if family(outcome) == "code" and "opened" in outcome] == []


def test_the_canary_would_sing(tmp_path: Path) -> None:
    import pickle

    from tests.core.hostile_checkpoints import code

    canary = tmp_path / "canary"
    files = dict(code(str(canary)))
    for name in ("code-system-2-bare.pt", "code-eval-4-bare.pt", "code-open-0-bare.pt"):
        pickle.loads(files[name])
        assert canary.exists(), name
        canary.unlink()


def test_every_refusal_is_one_clear_sentence(outcomes: list[Outcome], folder: Path) -> None:
    refused = [outcome for outcome in outcomes if "message" in outcome]
    assert len(refused) > 3 * MIN_FILES
    for outcome in refused:
        message = outcome["message"]
        assert outcome["field"] == "checkpoint"
        assert message.isprintable(), message
        assert 20 < len(message) < MAX_MESSAGE, message
        assert message.endswith("."), message
        assert str(folder) not in message, message
        assert "Traceback" not in message, message
        assert "File " not in message, message
        assert "Error" not in message.replace(outcome["file"], ""), message


def test_what_is_wrong_is_named(outcomes: list[Outcome]) -> None:
    found = by_name(outcomes)
    expected = {
        "code-system-2-zip.bin": "holds posix.system, which needs code to be read, and code is never run here",
        "code-eval-2-legacy.pth": "builtins.eval",
        "code-exec-4-bare.pt": "a pickle that torch.save did not write",
        "length-10737418240.safetensors": "claims a header of 10,737,418,240 bytes, but the whole file has",
        "header-overlap.safetensors": "invalid offset",
        "claim-storage-zip.pt": "claims more stored numbers than it holds",
        "claim-storage-legacy.pt": "cut off or claims more stored numbers than it holds",
        "claim-beyond-zip.pt": "a tensor that reaches beyond its stored numbers",
        "claim-beyond-legacy.pt": "a tensor that reaches beyond its stored numbers",
        "claim-key-deep-zip.pt": "keys are neither text nor numbers",
        "claim-dicts-many-legacy.pt": "more than 3,000,000 pickle instructions",
        "zip-bomb.pt": "compressed archive",
        "zip-before.pt": "the archive is not as torch.save writes it",
        "zip-behind.pt": "the archive is not as torch.save writes it",
        "zip-overlap.pt": "the archive is not as torch.save writes it",
        "zip-comment.pt": "has something behind its end",
        "zip-script.pt": "TorchScript",
        "value-module.pt": "a whole module (torch.nn.modules.linear.Linear)",
        "value-module-legacy.pt": "torch.save(model.state_dict(), path)",
        "value-optimizer.pt": "the state of an optimizer and no weights",
        "value-list.pt": "holds a list, not a state dict",
        "value-tensor.pt": "holds one tensor without a name",
        "text-page.bin": "is a web page",
        "text-pointer.safetensors": "git lfs pull",
        "text-gguf.bin": "GGUF",
        "text-h5.bin": "HDF5",
        "text-empty.pt": "is empty",
        "text-graph.onnx": "ONNX",
        "text-flax.msgpack": "msgpack",
        "index-7.index.json": "'../x.pt', which is not a plain name of a file beside it",
        "index-17.index.json": "a link out of its folder",
        "index-14.index.json": "none of the files that it names is beside it",
    }
    wrong = {name: found[name] for name, part in expected.items() if part not in found[name].get("message", "")}
    assert wrong == {}
    never = ("zip", "length", "value", "text", "noise")
    assert [o["file"] for o in outcomes if family(o) in never and "opened" in o] == []


def test_the_content_decides_not_the_ending(outcomes: list[Outcome]) -> None:
    found = by_name(outcomes)
    assert found["ending-control-zip.pt.safetensors"]["notes"] == [
        "ending-control-zip.pt.safetensors is a torch zip file, read as such"
    ]
    assert found["ending-control-old.pt.safetensors"]["notes"] == [
        "ending-control-old.pt.safetensors is a torch pickle, read as such"
    ]
    assert found["ending-control-good.safetensors.bin"]["notes"] == [
        "ending-control-good.safetensors.bin is a safetensors file, read as such"
    ]
    assert [outcome for outcome in outcomes if family(outcome) == "ending" and "opened" not in outcome] == []


def test_memory_and_time_are_bounded(lines: list[Outcome]) -> None:
    assert lines[-1]["grown_bytes"] < MAX_GROWN_BYTES
    assert [line for line in lines[:-1] if line["seconds"] > MAX_SECONDS] == []
