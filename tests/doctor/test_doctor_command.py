"""The command `doctor`: what it prints, where, and with which exit code; the check-up itself is replaced but once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mha_core.cli import main
from mha_core.doctor.process import sandbox
from mha_core.doctor.report import CHECK_IDS, CheckResult, Place, Report
from mha_core.errors import MhaError

ROOT = Path(__file__).resolve().parents[2]
LAYER = """
from torch import nn
class Attention(nn.Module):
    def __init__(self, d_model, factor):
        super().__init__()
        self.factor = factor
        self.qkv = nn.Linear(d_model, 3 * d_model)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-2, -1) * self.factor).softmax(-1) @ v
"""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the check-up; holds what it was asked, and answers with `status`."""
    seen: dict[str, Any] = {"status": "pass"}

    def check_file(
        path: object, target: object, kwargs: object, options: object, progress: Callable[[str], None]
    ) -> Report:
        seen.update(path=path, target=target, kwargs=kwargs, options=options)
        for stage in ("import", "reach"):
            progress(stage)
        if isinstance(seen["status"], MhaError):
            raise seen["status"]
        place = Place("a.py", 3, "q = q.view(B, H, S, d)")
        found = CheckResult("reach", seen["status"], "the \x1b[31m reason", {"worst": float("inf")}, "the cause", place)
        return Report("Attention (a.py)", {"embed_dim": 24, "constructor": "Attention()"}, (found,))

    monkeypatch.setattr(sandbox, "check_file", check_file)
    return seen


@pytest.mark.parametrize(
    ("status", "code"), [("pass", 0), ("warn", 0), ("by_design", 0), ("not_applicable", 0), ("fail", 1)]
)
def test_exit_code_and_json(
    replaced: dict[str, Any], capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    replaced["status"] = status
    assert main(["doctor", "a.py:Attention", "--json"]) == code
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert list(found) == ["module", "assumed", "verdict", "checks"]
    assert found["verdict"] == (status if status in ("warn", "fail") else "pass")
    assert list(found["checks"][0]) == ["id", "status", "reason", "evidence", "cause", "where"]
    assert found["checks"][0]["where"] == "a.py:3: q = q.view(B, H, S, d)"
    assert err == "checking: reach\n"


def test_for_a_person(replaced: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    replaced["status"] = "fail"
    assert main(["doctor", "a.py:Attention"]) == 1
    out = capsys.readouterr().out
    for part in ("Attention (a.py)", "embed dim: 24", "Failed", "reach", "the cause", "a.py:3: q =", "verdict: fail"):
        assert part in out
    assert "\x1b" not in out  # foreign text does not drive the terminal


def test_what_the_check_up_is_asked(replaced: dict[str, Any]) -> None:
    line = "doctor some/a.py:Outer.Inner --causal --no-batch-first --embed-dim 26 --num-heads 13 --num-kv-heads 1"
    extra = [
        "--call",
        "module(x)",
        "--only",
        "scale,reach",
        "--seconds",
        "7",
        "--memory",
        "1.5",
        "--kwargs",
        '{"d": 2}',
    ]
    assert main([*line.split(), *extra]) == 0
    options = replaced["options"]
    assert (replaced["path"], replaced["target"], replaced["kwargs"]) == (Path("some/a.py"), "Outer.Inner", {"d": 2})
    assert (options.causal, options.batch_first, options.call) == (True, False, "module(x)")
    assert (options.embed_dim, options.num_heads, options.num_kv_heads) == (26, 13, 1)
    assert (options.seconds, options.memory_gib, options.ids) == (7.0, 1.5, ["reach", "scale"])
    assert main(["doctor", "torch.nn:MultiheadAttention"]) == 0
    assert (replaced["path"], replaced["target"]) == ("torch.nn", "MultiheadAttention")
    options = replaced["options"]
    assert (options.causal, options.batch_first, options.ids) == (None, None, list(CHECK_IDS))


def test_the_page_is_written(replaced: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "a.py:Attention", "--html", str(tmp_path / "out.html")]) == 0
    assert "<h1>Attention (a.py)</h1>" in (tmp_path / "out.html").read_text()
    assert main(["doctor", "a.py:Attention", "--html", str(tmp_path / "no" / "out.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such.py:A"], "no_such.py does not exist"),
        (["a.py:A", "--kwargs", "{d: 2}"], "--kwargs is no JSON"),
        (["a.py:A", "--kwargs", "[2]"], "a JSON object"),
        (["a.py:A", "--only", "scael"], "Try --only scale"),
        (["a.py:A", "--seconds", "0"], "a number above 0"),
        (["a.py:A", "--memory", "much"], "a number above 0"),
        (["a.py:A", "--embed-dim", "-3"], "a whole number"),
        (["???"], "neither a file nor a module"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_what_could_not_be_run(replaced: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    replaced["status"] = MhaError("doctor", "a.py", "code", problem="a.py cannot be imported: NameError")
    assert main(["doctor", "a.py:A", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "error: a.py cannot be imported: NameError."


def test_the_help_names_what_a_call_can_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    out = capsys.readouterr().out
    for words in ("keep_keys", "True = may attend", "--kwargs '{", "exit code 0"):
        assert words in out


def test_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "layer.py").write_text(LAYER, encoding="utf-8")
    line = [
        "doctor",
        str(tmp_path / "layer.py"),
        "--only",
        "scale",
        "--json",
        "--kwargs",
        '{"d_model": 16, "factor": 4}',
    ]
    done = subprocess.run([sys.executable, "-m", "mha_core", *line], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr  # multiplied by sqrt(D) where it should be divided
    (check,) = json.loads(done.stdout)["checks"]
    assert (check["id"], check["status"]) == ("scale", "fail")
    assert "softmax" in check["where"]
