"""The command `gradients`: exit codes, JSON and tables, against a plain layer and hand-made files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from mha_core import Experiment
from mha_core.cli import main
from mha_core.init_schemes import INIT_SCHEMES
from tests.lenses.plain_layer import plain_pass

Capture = pytest.CaptureFixture[str]
SMALL = ("--embed-dim", "30", "--num-heads", "5", "--text", "one two three four five six seven")


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def call(*arguments: str) -> int:
    try:
        return main(("gradients", *arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def answer(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert call(*arguments, "--json") == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return found


def test_one_pass_as_json(capsys: Capture) -> None:
    found = answer(capsys, *SMALL, "--dtype", "float64", "--mask", "causal")
    fields = {"embed_dim": 30, "num_heads": 5, "text": SMALL[-1], "dtype": "float64", "mask": ("causal",)}
    plain = plain_pass(Experiment.from_fields(fields), torch.sum)
    for row in found["parameters"]:
        exact = plain.parameters[row["name"]][1].norm().item()
        assert row["norm"] == pytest.approx(exact, rel=1e-8, abs=1e-10)
    assert [head["head"] for head in found["parameters"][0]["heads"]] == [0, 1, 2, 3, 4]
    assert {row["name"] for row in found["tensors"]} == {"q", "k", "v", "scores", "weights", "context", "output"}
    assert found["parameters"][5]["verdict"]["kind"] == "by design"  # and yet the exit code is 0


def test_a_dead_gradient_is_a_finding(capsys: Capture) -> None:
    found = answer(capsys, *SMALL, "--init", "zeros", "--init-targets", "out", "--loss", "mse", code=1)
    verdicts = {row["name"]: row["verdict"] for row in found["parameters"]}
    assert {name for name, verdict in verdicts.items() if verdict["kind"] == "dead"} == {
        "q",
        "k",
        "v",
        "q_bias",
        "v_bias",
    }
    assert call(*SMALL, "--init", "zeros", "--init-targets", "out") == 1
    printed = capsys.readouterr().out
    assert "q is dead" in printed
    assert "out is zero, so dL/dcontext = dL/dy · Wout is zero and nothing reaches q, k, v" in printed


def test_nan_is_a_finding_and_still_json(capsys: Capture) -> None:
    arguments = ("--text", "a b", "--mask", "custom", "--custom-mask", "00/11", "--fill", "-inf")
    found = answer(capsys, *arguments, code=1)
    assert found["loss_value"] is None
    kinds = {row["name"]: row["verdict"]["kind"] for row in found["parameters"]}
    assert kinds["v"] == kinds["out"] == "exploding"
    assert kinds["q"] == "healthy"  # the fill stops the gradient of the empty row, and the other row is sound


def test_tables_for_a_person(capsys: Capture) -> None:
    assert call(*SMALL) == 0
    printed = capsys.readouterr().out
    for words in ("loss sum", "parameters", "tensors", "k_bias", "by design", "healthy"):
        assert words in printed
    assert call(*SMALL, "--kernel", "sdpa", "--init", "constant", "--loss", "mse") in (0, 1)
    printed = capsys.readouterr().out
    assert "never shows scores or weights" in printed
    assert "5 heads do the work of one" in printed


def test_schemes_side_by_side(capsys: Capture) -> None:
    found = answer(capsys, *SMALL, "--schemes")
    assert [row["scheme"] for row in found["schemes"]] == list(INIT_SCHEMES)
    zeros = next(row for row in found["schemes"] if row["scheme"] == "zeros")
    assert zeros["norm_q"] == zeros["std_q"] == zeros["norm_out"] == 0
    assert zeros["verdicts"]["v"]["factors"] == ["out"]
    assert call(*SMALL, "--schemes", "--init", "zeros") == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in INIT_SCHEMES)
    assert "0 dead" in printed


def test_recorded_norms(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "norms.json"
    path.write_text(json.dumps({"a.wq": 0, "a.wk": 1.5, "a.wv": "NaN", "a.fc_out": 2}), encoding="utf-8")
    found = answer(capsys, "--norms", str(path), code=1)
    assert [row["kind"] for row in found["norms"]] == ["dead", "healthy", "exploding", "healthy"]
    assert "k is zero, so the gradient of q is zero" in found["norms"][0]["reason"]
    path.write_text(json.dumps({"a.wq": 1.0, "a.wk": 1.5, "a.wk.bias": 0}), encoding="utf-8")
    assert call("--norms", str(path)) == 0
    assert "by design" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--loss", "hinge"), "loss is hinge; it must be one of sum, mse, next_token"),
        (("--loss", "next_token", "--text", "alone"), "every sequence is one token long"),
        (("--schemes", "--loss", "next_token", "--k-len", "3"), "two sequences"),
        (("--norms", "no/such/file.json"), "cannot read no/such/file.json"),
        (("--norms", __file__), "this is not JSON"),
        (("--num-heads", "7"), "not divisible"),
        (("--q-len", "8192", "--batch", "2"), "bytes"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: tuple[str, ...], words: str) -> None:
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
