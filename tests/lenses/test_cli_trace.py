"""The command `trace`: its JSON and table against a run, its exit codes, and both errors of a broken configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mha_core import AttentionConfig, Experiment, MaskSpec, TextSource, run
from mha_core.cli import main

Capture = pytest.CaptureFixture[str]
SMALL = ("--text", "one two three four five", "--embed-dim", "42", "--num-heads", "3", "--mask", "causal")


def traced(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What the command prints as JSON."""
    assert main(["trace", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_tells_what_a_run_computes(capsys: Capture) -> None:
    steps = {step["name"]: step for step in traced(capsys, *SMALL)["steps"]}
    experiment = Experiment(TextSource("one two three four five"), AttentionConfig(42, 3), MaskSpec(("causal",)))
    result = run(experiment)
    for name, tensor in {"k_heads": result.k, "scores": result.scores, "output": result.output}.items():
        assert steps[name]["shape"] == list(tensor.shape)
        assert steps[name]["strides"] == list(tensor.stride())
        assert steps[name]["mean"] == pytest.approx(tensor.double().mean().item(), abs=1e-6)
        assert steps[name]["std"] == pytest.approx(tensor.double().std(correction=0).item(), rel=1e-5)
    assert steps["weights"]["memory"] == "in place"
    assert steps["weights"]["symbolic"] == ["B", "H", "S", "S"]


def test_table_has_a_line_per_step(capsys: Capture) -> None:
    assert main(["trace", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("B=1 S=5 ")
    names = [line.split()[0] for line in lines[2:]]
    assert names[:2] == ["query", "mask"]
    assert names[-1] == "output"
    assert "(B, H, S, D)" in next(line for line in lines if line.startswith("q_heads"))


def test_chunks_are_counted(capsys: Capture) -> None:
    assert (
        main(
            ["trace", "--q-len", "523", "--batch", "1", "--embed-dim", "22", "--num-heads", "2", "--kernel", "chunked"]
        )
        == 0
    )
    assert "softmax(dim=-1) (x 3)" in capsys.readouterr().out


def test_a_broken_configuration_prints_its_steps_and_both_errors(capsys: Capture) -> None:
    found = traced(capsys, "--num-heads", "7", code=2)
    assert [step["name"] for step in found["steps"]] == ["query", "q_proj"]
    assert found["failure"]["step"] == "q_view"
    assert found["failure"]["torch_error"] == "shape '[1, 11, 7, 73]' is invalid for input of size 5632"
    assert found["failure"]["error"]["field"] == "num_heads"
    assert main(["trace", "--num-heads", "7"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: embed_dim 512 is not divisible by num_heads 7")
    assert "It fails at q_view; torch says: shape" in line


def test_not_a_number_is_a_finding_and_a_chosen_infinity_is_not(capsys: Capture) -> None:
    arguments = ("--text", "one two", "--mask", "custom", "--custom-mask", "00/11")
    assert main(["trace", *arguments, "--fill", "-inf"]) == 1
    assert main(["trace", *SMALL, "--fill", "-inf"]) == 0
    capsys.readouterr()


def test_a_bad_value_is_one_line(capsys: Capture) -> None:
    assert main(["trace", "--num-heads", "many"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert len(streams.err.splitlines()) == 1
