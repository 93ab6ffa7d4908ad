"""What is not known, what a whole traceback hides, and the command `explain` with its exit codes."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mha_core.cli import main
from mha_core.doctor.explain import explain
from mha_core.doctor.explainers.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
SQLITE = """Traceback (most recent call last):
  File "/srv/app/store.py", line 41, in save
    cursor.execute("insert into heads values (?, ?)", (name, size))
sqlite3.OperationalError: table heads has 3 columns but 2 values were supplied
"""
TRACEBACK = """/usr/lib/python3/site-packages/torch/nn/modules/transformer.py:282: UserWarning: \
enable_nested_tensor is True, but self.use_nested_tensor is False because \
encoder_layer.self_attn.batch_first was not True(use batch_first for better inference performance)
  warnings.warn(f"enable_nested_tensor is True, but {why_not_sparsity_fast_path}")
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    y = model(x)
  File "/home/me/model.py", line 30, in forward
    q = self.q_proj(x).view(B, S, self.num_heads, self.head_dim)
RuntimeError: shape '[2, 10, 7, 73]' is invalid for input of size 10240
"""
UNKNOWN = [
    "KeyError: 'attention'",
    "KeyError: 'hidden_size'",
    "IndexError: list index out of range",
    "ModuleNotFoundError: No module named 'torch'",
    "ValueError: invalid literal for int() with base 10: 'head'",
    "TypeError: unhashable type: 'list'",
    "FileNotFoundError: [Errno 2] No such file or directory: 'model.pt'",
    "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[1, 1, 224, 224] to have 3 channels",
    "ValueError: Expected input batch_size (32) to match target batch_size (64).",
    "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed.",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "RuntimeError: Error(s) in loading state_dict for ViT: size mismatch for head.weight: copying a param with shape "
    "torch.Size([1000, 768]) from checkpoint, the shape in current model is torch.Size([10, 768]).",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ValueError: too many values to unpack (expected 2)\n"
    + 'for name, age in rows: print("a long line of a script")' * 3,
    "The weather was fine, and nobody asked for anything.",
    SQLITE,
]


@pytest.mark.parametrize("text", UNKNOWN, ids=lambda text: text[:30])
def test_unknown_texts(text: str) -> None:
    found = explain(text)
    assert not found.known
    assert "not known" in found.explanation
    assert found.kind == "" or (found.kind in KINDS and "likeness of words" in found.explanation)


@pytest.mark.parametrize("seed", range(20))
def test_random_words_are_not_known(seed: int) -> None:
    chance = random.Random(seed)
    words = [
        "error",
        "size",
        "shape",
        "of",
        "the",
        "tensor",
        "heads",
        "mask",
        "attention",
        "512",
        "(7)",
        "is",
        "invalid",
    ]
    assert not explain(" ".join(chance.choices(words, k=12))).known


def test_the_nearest_kind_of_a_description() -> None:
    found = explain("My causal mask seems to let the model look at the future tokens in attention")
    assert (found.known, found.kind) == (False, "causal")


def test_the_last_error_of_a_traceback_counts() -> None:
    assert "511 of 512" in explain(TRACEBACK).explanation
    chained = "ValueError: hidden_size must be divisible by num_heads (got `hidden_size`: 512 and `num_heads`: 7).\n\n"
    chained += "The above exception was the direct cause of the following exception:\n\n" + TRACEBACK
    assert explain(chained).explanation == explain(TRACEBACK).explanation
    rich = "\n".join(f"│ {line} │" for line in TRACEBACK.splitlines())
    assert "511 of 512" in explain(rich).explanation
    rank = "[rank0]: " + TRACEBACK.replace("\n", "\n[rank0]: ")
    assert "511 of 512" in explain(rank).explanation


def test_a_warning_before_an_unknown_error_is_not_its_cause() -> None:
    warning = TRACEBACK.partition("Traceback")[0]
    assert explain(warning).kind == "batch_first"
    assert not explain(warning + SQLITE).known


def test_quotes_and_prefixes_do_not_matter() -> None:
    plain = explain("RuntimeError: shape '[2, 10, 7, 73]' is invalid for input of size 10240")
    for text in (
        "shape '[2, 10, 7, 73]' is invalid for input of size 10240",
        "Error: shape ‘[2, 10, 7, 73]’ is invalid for input of size 10240",
        "torch.jit.Error: shape [2, 10, 7, 73] is invalid\n   for input of size 10240",
    ):
        assert explain(text).explanation == plain.explanation


def test_numbers_that_agree_are_not_explained() -> None:
    assert not explain("RuntimeError: shape '[2, 32, 10, 64]' is invalid for input of size 40960").known


def test_odd_input_does_not_break() -> None:
    for text in ("", "\x00\x1b[31m", "shape '[]' is invalid for input of size 3", "a" * 100_000, "[" * 5000):
        assert not explain(text).known
    huge = "shape '[99999999999999999999, 7, 73]' is invalid for input of size 10240000000000000000000"
    assert explain(huge).known
    empty = "RuntimeError: shape '[2, 8, 64]' is invalid for input of size 0"
    assert explain(empty).known


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "shape '[2, 10, 7, 73]' is invalid for input of size 10240", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"known", "kind", "explanation", "try"}
    assert (answer["known"], answer["kind"]) == (True, "divisibility")
    assert "511" in answer["explanation"]
    assert main(["explain", "KeyError: 'x'"]) == 1
    assert "not known" in capsys.readouterr().out
    heads = ["--embed-dim", "512", "--num-heads", "7"]
    assert main(["explain", "embed_dim must be divisible by num_heads", *heads]) == 0
    assert "511 of 512" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[""], ["text", "--batch", "0"], ["text", "--q-len", "two"], ["x", "--k-len", "-3"]]
)
def test_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRACEBACK.encode() + b"\xff")))
    assert main(["explain", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "divisibility"


def test_a_process() -> None:
    command = [sys.executable, "-m", "mha_core", "explain", "-"]
    done = subprocess.run(command, cwd=ROOT, input=TRACEBACK, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("divisibility\n")
