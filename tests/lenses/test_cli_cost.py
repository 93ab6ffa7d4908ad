"""The command `cost`: what it prints against numbers worked out here, at once and at any length."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from mha_core import MultiHeadAttention, experiment
from mha_core.cli import main

Capture = pytest.CaptureFixture[str]


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def call(*arguments: str) -> int:
    try:
        return main(("cost", *arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def answer(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert call(*arguments, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out, parse_constant=refuse)
    return found


def test_what_is_promised(capsys: Capture) -> None:
    found = answer(capsys, "--batch", "2", "--q-len", "7", "--embed-dim", "30", "--num-heads", "5")
    assert found["convention"] == "1 multiply-add = 2 FLOPs"
    assert {"step", "formula", "matmul_flops", "elementwise_flops", "bytes"} <= set(found["rows"][0])
    assert found["totals"]["matmul_flops"] == 2 * 2 * (4 * 7 * 30 * 30 + 2 * 7 * 7 * 30)
    assert found["totals"]["elementwise_flops"] == 2 * (5 * 7 * 7 * (1 + 5) + 4 * 7 * 30)
    assert found["totals"]["backward_matmul_flops"] == 2 * found["totals"]["matmul_flops"]
    for name, total in found["totals"].items():
        assert total == sum(row[name] for row in found["rows"])
    layer = MultiHeadAttention(embed_dim=30, num_heads=5)
    assert found["parameters"] == sum(parameter.numel() for parameter in layer.parameters())
    assert found["attention_matrix_bytes"] == 2 * 5 * 7 * 7 * 4
    assert found["kv_cache_bytes"]["float32"] == 2 * 2 * 7 * 30 * 4
    assert found["crossing"]["full_square"] == 60
    assert found["run"]["fits"] is True
    assert "counters" not in found


def test_nothing_is_run_and_any_length_is_answered(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> NoReturn:
        raise AssertionError("the layer was run")

    monkeypatch.setattr(MultiHeadAttention, "forward", run)
    monkeypatch.setattr(MultiHeadAttention, "project", run)
    monkeypatch.setattr(experiment, "embed", run)
    found = answer(capsys, "--batch", "1", "--q-len", "16384", "--mask", "causal", "--context", "100000")
    assert found["totals"]["matmul_flops"] == 8 * 16_384 * 512 * 512 + 4 * 16_384**2 * 512
    assert found["sizes"]["pairs"] == 16_384 * 16_385 // 2
    assert found["totals"]["needed_matmul_flops"] == 8 * 16_384 * 512 * 512 + 4 * found["sizes"]["pairs"] * 512
    assert found["kv_cache_bytes"]["bfloat16"] == 2 * 100_000 * 512 * 2
    assert found["run"]["fits"] is False


def test_the_tables_say_that_a_run_would_not_fit(capsys: Capture) -> None:
    assert call("--batch", "1", "--q-len", "16384") == 0
    printed = capsys.readouterr().out
    assert "Running this would take 24.3 GiB, more than the budget of 1.0 GiB: only its cost is given." in printed
    assert "584,115,552,256" in printed
    assert call("--q-len", "7") == 0
    assert "would take" not in capsys.readouterr().out


def test_the_tables_say_every_step(capsys: Capture) -> None:
    assert call("--q-len", "7", "--mask", "causal", "--positions", "rotary", "--num-kv-heads", "2", "--count") == 0
    printed = capsys.readouterr().out
    for words in ("q projection", "q·kᵀ", "softmax", "weights·v", "bias", "total", "2·B·H·Sq·Sk·D", "autocast"):
        assert words in printed
    assert "counter, explicit kernel" in printed
    assert "it overtakes the projections at\nS = 640 tokens over the full square, 1,279 over the causal half" in printed


def test_counters_when_asked(capsys: Capture) -> None:
    found = answer(capsys, "--q-len", "7", "--count", "--no-input-gradient")
    counters = {count["name"]: count for count in found["counters"]}
    assert counters["counter, explicit kernel"]["agrees"] is True
    assert counters["counter, explicit kernel"]["forward"] == found["totals"]["matmul_flops"]
    assert counters["counter, explicit kernel"]["backward"] == found["totals"]["backward_matmul_flops"]
    projections = 3 * 2 * 2 * 7 * 512 * 512
    assert found["totals"]["backward_matmul_flops"] == 2 * found["totals"]["matmul_flops"] - projections


@pytest.mark.parametrize("context", ["0", "x", "1.5", "99999999999"])
def test_a_bad_context_is_one_line(capsys: Capture, context: str) -> None:
    assert call("--context", context) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"context is {context}; it must be a whole number from 1 to 16,777,216" in captured.err


def test_a_mask_that_does_not_fit_is_refused(capsys: Capture) -> None:
    assert call("--q-len", "3", "--mask", "custom", "--custom-mask", "10") == 2
    assert "the custom mask is 1 x 2" in capsys.readouterr().err
