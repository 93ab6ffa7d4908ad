"""The command `run`: what it prints and saves against a second computation, and its exit codes.

0 is fine, 1 a finding, 2 bad input with exactly one line on stderr and no traceback. Mostly in this process; what
depends on a process of its own (the module entry, a closed pipe, the encoding of the terminal) runs in one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from mha_core import Experiment, MultiHeadAttention, run
from mha_core.cli import main
from mha_core.fields import FIELDS
from tests.lenses.reference import entropy, reference

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def call(*arguments: str) -> int:
    """The exit code of a command, however it is given."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def summary(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What `run --json` prints."""
    assert call("run", *arguments, "--json") == code
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out, parse_constant=refuse)
    return found


def complaint(capsys: Capture, *arguments: str) -> str:
    """The one line of a refused command."""
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert captured.err.strip()
    assert "Traceback" not in captured.err
    return captured.err


def spawn(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the module in a process of its own."""
    command = [sys.executable, "-m", "mha_core", *arguments]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False, **options)


def test_options_are_the_fields(capsys: Capture) -> None:
    assert call("run", "--help") == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {f"--{name.replace('_', '-')}" for name in FIELDS} <= set(words)
    promised = ("embed-dim", "num-heads", "mask", "window", "init", "init-targets", "seed", "batch", "q-len", "k-len")
    assert {f"--{name}" for name in promised} <= set(words)


@pytest.mark.parametrize("mask", ["none", "causal", "causal,local", "padding,causal"])
def test_the_summary_against_a_second_computation(capsys: Capture, mask: str) -> None:
    options = ("--text", "one two three\nfour five", "--embed-dim", "30", "--num-heads", "5", "--num-kv-heads", "1")
    found = summary(capsys, *options, "--mask", mask, "--window", "1", "--seed", "7")
    kinds = () if mask == "none" else tuple(mask.split(","))
    fields = {"text": "one two three\nfour five", "embed_dim": 30, "num_heads": 5, "num_kv_heads": 1, "window": 1}
    expected = reference(run(Experiment.from_fields(fields | {"mask": kinds, "seed": 7})))
    assert found["sizes"] == {"B": 2, "Sq": 3, "Sk": 3, "E": 30, "H": 5, "Hkv": 1, "D": 6}
    assert found["tokens"] == [["one", "two", "three"], ["four", "five", "[pad]"]]
    layer = MultiHeadAttention(30, 5, num_kv_heads=1)
    assert found["parameters"] == sum(tensor.numel() for tensor in layer.parameters())
    assert found["output"]["shape"] == [2, 3, 30]
    assert found["output"]["std"] == pytest.approx(expected.output.std(), rel=1e-4)
    for sample, rows in enumerate((3, 2)):
        for head, numbers in enumerate(found["heads"][sample]):
            maps = expected.weights[sample, head, :rows]
            assert numbers["head"] == head
            assert numbers["entropy_nats"] == pytest.approx(np.mean([entropy(row) for row in maps]), abs=1e-5)
            assert numbers["maximum"] == pytest.approx(maps.max(-1).mean(), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_saved_file(capsys: Capture, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "out.npz"
    sizes = ("--batch", "3", "--q-len", "5", "--k-len", "7", "--embed-dim", "22", "--num-heads", "11")
    summary(capsys, *sizes, "--mask", "causal", "--dtype", dtype, "--save", str(path))
    with np.load(path, allow_pickle=False) as saved:
        stored = Experiment.from_json(str(saved["experiment"]))
        expected = reference(run(stored))
        tolerance = {"atol": 3e-2 if dtype == "bfloat16" else 1e-5}
        assert saved["tokens"].shape == (3, 5)
        assert saved["memory_tokens"].tolist() == [["0", "1", "2", "3", "4", "5", "6"]] * 3
        assert saved["weights"].shape == (3, 11, 5, 7)
        assert saved["output"].shape == (3, 5, 22)
        assert saved["weights"].dtype == (np.float64 if dtype == "float64" else np.float32)
        assert np.allclose(saved["weights"], expected.weights, **tolerance)
        assert np.allclose(saved["output"], expected.output, **tolerance)
        assert not saved["weights"][~expected.allowed].any()
    assert (stored.source.batch, stored.source.q_len, stored.source.k_len, stored.dtype) == (3, 5, 7, dtype)


def test_tokens_are_saved_as_they_are_shown(capsys: Capture, tmp_path: Path) -> None:
    summary(capsys, "--text", "Grüße 你好 👩‍👩‍👧", "--save", str(tmp_path / "t.npz"))
    with np.load(tmp_path / "t.npz", allow_pickle=False) as saved:
        assert saved["tokens"].tolist() == [["Grüße", "你", "好", "👩‍👩‍👧"]]


def test_for_a_person(capsys: Capture) -> None:
    assert call("run", "--text", "red green blue") == 0
    captured = capsys.readouterr()
    assert "red green blue" in captured.out
    assert "B=1 Sq=3 Sk=3" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("fill", ["zero", "-1e9", "-inf"])
def test_a_finding_exits_with_1(capsys: Capture, fill: str) -> None:
    custom = ("--text", "a b", "--mask", "custom", "--custom-mask", "11/00", f"--fill={fill}")
    found = summary(capsys, *custom, code=1)
    kinds = {finding["kind"] for finding in found["findings"]}
    assert "empty_rows" in kinds
    assert ("not_finite" in kinds) == (fill == "-inf")
    assert call("run", *custom) == 1
    assert "b (query 1)" in capsys.readouterr().out


@pytest.mark.parametrize("fill", ["-inf", "-1e4", "-1e9", "-1e10"])
def test_a_fill_may_follow_its_option(capsys: Capture, fill: str) -> None:
    """`--fill -inf` must mean the same as `--fill=-inf`: the value is no option."""
    assert summary(capsys, "--mask", "causal", "--fill", fill)["experiment"]["fill"] == fill


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-heads", "7"), ("512", "7 x 73", "num_heads 4 or 8")),
        (("--bogus", "3"), ("--bogus",)),
        (("--num-heads", "-4"), ("num_heads", "-4")),
        (("--num-heads", "many"), ("num_heads", "many")),
        (("--window", "-1", "--mask", "local"), ("window", "-1")),
        (("--seed", "-1"), ("seed",)),
        (("--mask", "diagonal"), ("mask", "diagonal")),
        (("--dropout", "1"), ("dropout",)),
        (("--dropout", "nan"), ("dropout",)),
        (("--scale", "inf"), ("scale",)),
        (("--q-len", "60000", "--batch", "9"), ("bytes", f"{4 * 9 * 8 * 60000**2:,}")),
        (("--q-len", "99999999999"), ("q_len",)),
        (("--embed-dim", "16384"), ("bytes",)),
        (("--text", "   "), ("text",)),
        (("--text", "a b", "--mask", "custom", "--custom-mask", "111/111"), ("2 x 3", "2 x 2")),
        (("--text", "a b", "--mask", "custom", "--custom-mask", "1x/11"), ("'x'",)),
        (("--text", "a b", "--mask", "custom", "--custom-mask", "1/11"), ("equally long",)),
        (("--mask", "custom"), ("custom",)),
        (("--kernel", "sdpa", "--dropout", "0.5"), ("dropout",)),
        (("--text", "a\nb", "--memory-text", "a\nb\nc"), ("2 lines", "3")),
        (("stray",), ("stray",)),
        (("--text",), ("--text",)),
    ],
    ids=" ".join,
)
def test_bad_input(capsys: Capture, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    line = complaint(capsys, "run", *arguments)
    assert [word for word in words if word not in line] == []


def test_bad_commands(capsys: Capture) -> None:
    assert "COMMAND" in complaint(capsys)
    assert "fly" in complaint(capsys, "fly")


def test_paths_that_cannot_be_written(capsys: Capture, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "out.npz"
    assert str(missing) in complaint(capsys, "run", "--save", str(missing))
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    assert str(folder) in complaint(capsys, "run", "--save", str(folder))


def test_a_bad_budget_is_bad_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", "1GB")
    assert "MHA_LAB_MEMORY_BUDGET" in complaint(capsys, "run")


def test_the_budget_is_kept(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", "100000")
    assert "bytes" in complaint(capsys, "run")
    assert summary(capsys, "--embed-dim", "8", "--num-heads", "2")["sizes"]["D"] == 4


def test_as_a_module() -> None:
    fine = spawn("run", "--source", "random", "--q-len", "3", "--json", capture_output=True)
    assert (fine.returncode, fine.stderr) == (0, b"")
    assert json.loads(fine.stdout, parse_constant=refuse)["sizes"]["Sq"] == 3


def test_a_reader_that_leaves_is_not_a_path_that_cannot_be_written() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        left = spawn("run", "--source", "random", "--q-len", "3", "--json", stdout=write_end, stderr=subprocess.PIPE)
    finally:
        os.close(write_end)
    assert b"None" not in left.stderr
    assert b"Traceback" not in left.stderr


def test_a_text_that_is_not_unicode_ends_in_one_line_or_an_answer() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    found = spawn("run", "--text", os.fsdecode(b"caf\xff x"), "--json", env=environment, capture_output=True)
    assert b"Traceback" not in found.stderr
    if found.returncode == 2:
        assert found.stderr.count(b"\n") == 1
    else:
        json.loads(found.stdout.decode("utf-8"), parse_constant=refuse)
