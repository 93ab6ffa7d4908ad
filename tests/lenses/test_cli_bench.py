"""The command `bench`: what it prints, its exit codes, and that mistakes are one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mha_core import kernels
from mha_core.cli import main

SMALL = ["bench", "--source", "random", "--batch", "1", "--embed-dim", "30", "--num-heads", "5", "--dtypes", "float32"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of such small products wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*SMALL, "--json", *arguments]) == code
    loaded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return loaded


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*SMALL, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    return printed.err


def test_json_holds_machine_rows_and_claims(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--lengths", "13,7", "--passes", "forward,forward+backward", "--seconds", "0.05")
    assert found["machine"]["torch"] == torch.__version__
    assert found["machine"]["cores"] >= 1
    rows = found["rows"]
    assert [(row["q_len"], row["pass"]) for row in rows[::16]] == [
        (7, "forward"),
        (7, "forward+backward"),
        (13, "forward"),
        (13, "forward+backward"),
    ]
    assert all(row["agrees"] for row in rows)
    assert all(0 < row["low_quartile_ms"] <= row["median_ms"] <= row["high_quartile_ms"] for row in rows)
    assert all(row["peak_extra_bytes"] >= 4 * row["q_len"] * 30 for row in rows)  # the output at least
    assert all({*warning} == {"kind", "sentence"} for row in rows for warning in row["warnings"])
    backward = [row["max_relative_gradient_difference"] is not None for row in rows]
    assert backward == [row["pass"] == "forward+backward" for row in rows]
    by_name = {(claim["name"], claim["q_len"]): claim["verdict"] for claim in found["claims"]}
    assert by_name["bfloat16", 7] == "not measured"
    assert {"fused projection", "one head", "memory of chunks"} <= {name for name, _ in by_name}


def test_without_time_it_only_compares(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "--q-len", "11", "--seconds", "0", "--mask", "causal")["rows"]
    assert {row["q_len"] for row in rows} == {11}
    assert all(row["median_ms"] is None and row["agrees"] for row in rows)


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--lengths", "7", "--seconds", "0.1", "--num-kv-heads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Sq=7 Sk=7 forward" in printed
    assert "not measured: it has no grouped key/value heads" in printed
    assert "On small matrices view + permute is faster" in printed


def test_a_disagreement_is_a_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.KERNELS["sdpa"]
    monkeypatch.setitem(
        kernels.KERNELS, "sdpa", lambda q, k, v, mask, call: (right(q, k, v, mask, call)[0] * 1.01, None)
    )
    rows = answer(capsys, "--seconds", "0", code=1)["rows"]
    assert {row["variant"].split(" · ")[-1] for row in rows if not row["agrees"]} == {"sdpa"}


def test_threads_are_set_for_the_measurement_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    wanted = 1 if before > 1 else 2
    assert answer(capsys, "--seconds", "0", "--threads", str(wanted))["machine"]["threads"] == wanted
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--lengths", "7,x"), "lengths"),
        (("--lengths", "0"), "lengths"),
        (("--lengths", "99999999"), "lengths"),
        (("--passes", "backward"), "passes"),
        (("--dtypes", "int8"), "dtypes"),
        (("--seconds", "soon"), "seconds"),
        (("--seconds", "-1"), "seconds"),
        (("--threads", "0"), "threads"),
        (("--threads", "many"), "threads"),
        (("--num-heads", "7"), "num_heads"),
        (("--lengths", "7", "--mask", "custom", "--custom-mask", "111/111/111"), "nothing can be measured"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str) -> None:
    assert named in complaint(capsys, *arguments)


def test_more_than_the_budget_is_refused_with_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", "10000")
    assert "bytes" in complaint(capsys, "--lengths", "101")
