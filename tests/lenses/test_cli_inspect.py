"""The command `inspect`: its JSON and table, its exit codes, and names that would command a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mha_core.cli import main
from mha_core.commands import inspect
from mha_core.sources.checkpoints.file import TensorInfo
from tests.lenses.checkpoints import bert, torch_layer, write

Capture = pytest.CaptureFixture[str]


def inspected(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What the command prints as JSON."""
    assert main(["inspect", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_tells_what_is_in_the_file(capsys: Capture, tmp_path: Path) -> None:
    state = bert()
    found = inspected(capsys, str(write(tmp_path, state)), "--num-heads", "5", "--all-tensors")
    assert found["name"] == "model.safetensors"
    assert found["tensors"] == 8
    assert found["size_bytes"] == 8 * 35 * 35 * 4
    assert {row["name"]: row["shape"] for row in found["all_tensors"]} == {n: [35, 35] for n in state}
    assert [layer["embed_dim"] for layer in found["layers"]] == [35, 35]
    assert found["layers"][0]["heads_used"] == {"num_heads": 5, "num_kv_heads": 5, "head_dim": 7}
    for row in found["layers"][1]["matrices"]:
        exact = state[row["tensor"]].double()
        assert row["std"] == pytest.approx(exact.std(correction=0).item(), rel=1e-9)
        assert row["spectrum"]["largest"] == pytest.approx(torch.linalg.svdvals(exact)[0].item(), rel=1e-9)
        assert "heads" not in row
    assert found["flags"] == []


def test_one_layer_has_its_heads(capsys: Capture, tmp_path: Path) -> None:
    state = bert()
    found = inspected(capsys, str(write(tmp_path, state)), "--num-heads", "5", "--layer", "1")
    (layer,) = found["layers"]
    out = layer["matrices"][3]
    assert out["role"] == "out"
    norms = [part.norm().item() for part in state[out["tensor"]].split(7, dim=1)]
    assert [head["norm"] for head in out["heads"]] == pytest.approx(norms, rel=1e-6)
    assert len(out["spectrum"]["values"]) == 35


def test_a_table_for_people(capsys: Capture, tmp_path: Path) -> None:
    path = write(tmp_path, torch_layer(), "layer.pt")
    assert main(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("layer.pt: torch, 4 tensors")
    assert "does not follow: possible 1, 2, 3" in said
    assert "looks like Xavier uniform on a packed (180, 60) matrix" in said
    assert "uncertain: the number of heads is not known" in said
    assert said.splitlines()[-1] == "nothing odd was found"
    assert main(["inspect", str(path), "--num-heads", "5", "--layer", "0", "--all-tensors"]) == 0
    said = capsys.readouterr().out
    assert said.count("head 4") == 7  # q, k, v, out, and the biases of q, k, v
    assert "enc.0.self_attn.in_proj_weight  180 x 60  float32" in said


def test_a_config_beside_gives_the_heads(capsys: Capture, tmp_path: Path) -> None:
    path = write(tmp_path, bert())
    config = tmp_path / "mine.json"
    config.write_text(json.dumps({"model_type": "bert", "num_attention_heads": 7}))
    found = inspected(capsys, str(path), "--config", str(config))
    assert [layer["num_heads"] for layer in found["layers"]] == [7, 7]


def test_a_problem_is_a_finding_and_a_note_is_not(capsys: Capture, tmp_path: Path) -> None:
    state = bert()
    state["encoder.layer.0.attention.output.dense.weight"].zero_()
    assert main(["inspect", str(write(tmp_path, state))]) == 0
    assert "note: encoder.layer.0.attention.output.dense.weight: the output projection is all zeros" in (
        capsys.readouterr().out
    )
    state["encoder.layer.0.attention.self.query.weight"][0, 0] = torch.nan
    assert main(["inspect", str(write(tmp_path, state))]) == 1
    capsys.readouterr()
    found = inspected(capsys, str(tmp_path / "model.safetensors"), "--num-heads", "6", code=1)
    assert {flag["kind"] for flag in found["flags"]} == {"zeros", "not_finite", "head_count"}


def test_what_cannot_be_read_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 9)
    good = str(write(tmp_path, bert()))
    for arguments in (
        [str(broken)],
        [str(tmp_path / "none.pt")],
        [good, "--num-heads", "many"],
        [good, "--layer", "9"],
    ):
        assert main(["inspect", *arguments]) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert len(streams.err.splitlines()) == 1
        assert "Traceback" not in streams.err


class Hostile:
    """A checkpoint whose every name would command a terminal; the reader leaves such names out."""

    format, config = "safetensors", None
    name, notes = "\x1b]0;owned\x07", ("\x1b[2J",)

    def __init__(self) -> None:
        self.state = {f"\u202e\x9b31m\r{name}": value for name, value in bert(layers=1).items()}
        self.tensors = {n: TensorInfo(tuple(v.shape), "float32", 4 * v.numel()) for n, v in self.state.items()}
        self.shapes = {n: info.shape for n, info in self.tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self.state[name] * torch.nan


@pytest.mark.parametrize("more", [[], ["--layer", "0"], ["--all-tensors"]])
def test_names_do_not_command_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    monkeypatch.setattr(inspect, "open_checkpoint", lambda path, config: Hostile())
    assert main(["inspect", "any", *more]) == 1
    said = capsys.readouterr()
    assert not {sign for sign in said.out + said.err if not sign.isprintable()} - {"\n"}
    assert r"\u202e\x9b31m\r" in said.out
