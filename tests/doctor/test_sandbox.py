"""Foreign code that hangs, dies, grabs memory, prints floods or forges: each becomes a finding, and nobody waits.

Every case is a process of its own that imports torch, so they are few, rich, and run two at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from mha_core.doctor.process.memory_limits import memory_sentence
from mha_core.doctor.process.own_lines import dumped_line
from mha_core.doctor.process.sandbox import Options, check_file, check_source
from mha_core.doctor.report import Report
from mha_core.errors import MhaError

SOURCE = """
import ctypes, json, os, sys, time
import torch
from torch import nn
{top}
class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
    def forward(self, x):
        {inside}
        q, k, v = self.query(x), self.key(x), self.value(x)
        return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
"""
CALLERS = """
def callers():
    frame, files = sys._getframe(), set()
    while frame := frame.f_back:
        files.add(os.path.basename(frame.f_code.co_filename))
    return files
"""
DIES_TWICE = """if "half_precision.py" in callers(): os._exit(3)
        if "mode_round_trip.py" in callers(): time.sleep(600)  # there"""
NEIGHBOUR = """from beside import WORD
assert WORD == "neighbour"
assert sys.argv == [__file__]
assert __name__ != "__main__"
assert sys.stdin.read() == ""
FORGED = json.dumps({"event": "result", "stage": "determinism", "id": "determinism", "status": "fail",
                     "reason": "forged", "evidence": {}, "cause": "", "where": None})
print(FORGED, flush=True)
if os.fork() == 0:
    with open("grandchild", "w") as file: file.write(str(os.getpid()))
    time.sleep(600)
"""
CASES: dict[str, tuple[str, str, Options]] = {
    "dies twice": (
        CALLERS,
        DIES_TWICE,
        Options(only=("scale", "half_precision", "mode_round_trip", "determinism"), seconds=5),
    ),
    "loud": (NEIGHBOUR, "print(FORGED, 'x' * 100_000, file=sys.stderr)", Options(only=("determinism",))),
    "greedy": ("", "torch.zeros(30 << 28)  # here", Options(only=("reach", "scale"))),
    "crashes": ("", "ctypes.string_at(0)  # here", Options(only=("reach", "causality", "scale"))),
    "deaf": ("os.closerange(0, 200)\nwhile True: pass  # here", "", Options(seconds=2)),
}


def outcome(name: str, folder: Path) -> tuple[Report | MhaError, float, list[str]]:
    top, inside, options = CASES[name]
    folder.mkdir()
    (folder / "beside.py").write_text("WORD = 'neighbour'\n")
    path = folder / "layers.py"
    path.write_text(SOURCE.format(top=top, inside=inside), encoding="utf-8")
    began, stages = time.monotonic(), list[str]()
    before = os.getcwd()
    try:
        return check_file(path, "Attention", {}, options, stages.append), time.monotonic() - began, stages
    except MhaError as error:
        return error, time.monotonic() - began, stages
    finally:
        assert os.getcwd() == before


Outcomes = dict[str, Future[tuple[Report | MhaError, float, list[str]]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    home = tmp_path_factory.mktemp("foreign")
    before = os.getcwd()
    os.chdir(home)  # foreign code runs where the person is
    try:
        with ThreadPoolExecutor(2) as pool:
            yield {name: pool.submit(outcome, name, home / name.replace(" ", "_")) for name in CASES}
    finally:
        os.chdir(before)


@pytest.fixture
def report(outcomes: Outcomes) -> Callable[[str], Report]:
    def of(name: str) -> Report:
        found = outcomes[name].result()[0]
        assert isinstance(found, Report), found
        return found

    return of


def line_of(name: str, mark: str) -> int:
    text = SOURCE.format(top=CASES[name][0], inside=CASES[name][1])
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_a_death_is_the_finding_of_its_check_and_the_others_go_on(report: Callable[[str], Report]) -> None:
    found = report("dies twice")
    assert [check.id for check in found.checks] == ["scale", "half_precision", "mode_round_trip", "determinism"]
    assert [check.status for check in found.checks] == ["pass", "fail", "fail", "not_applicable"]
    assert "ended with exit code 3" in found["half_precision"].reason
    assert "did not return within 5 s" in found["mode_round_trip"].reason
    place = found["mode_round_trip"].where
    assert place is not None
    assert (place.file, place.line) == ("layers.py", line_of("dies twice", "there"))
    assert found["determinism"].reason.startswith("not asked")
    assert found.verdict == "fail"


def test_what_was_guessed_and_the_limits_are_told(outcomes: Outcomes, report: Callable[[str], Report]) -> None:
    found = report("dies twice")
    assert found.assumed["constructor"] == "Attention(d_model=24); d_model guessed"
    assert "5 s" in found.assumed["limits"]
    assert "4 GiB" in found.assumed["limits"]
    stages = outcomes["dies twice"].result()[2]
    assert stages[:4] == ["import", "construct", "examine", "scale"]
    assert [stage for stage in stages if stage == "scale"] == ["scale"]  # not asked again by the second process


def test_printing_forges_nothing_and_a_flood_is_told(report: Callable[[str], Report]) -> None:
    found = report("loud")["determinism"]
    assert found.status == "warn"
    assert "prints" in found.reason
    assert "forged" not in found.reason
    assert found.evidence["printed_bytes"] > 1_000_000


def is_running(number: int) -> bool:
    """Whether a process is there and not merely waiting for somebody to take note of its end."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_children_of_the_child_end_with_it(outcomes: Outcomes) -> None:
    outcomes["loud"].result()
    number = int(Path("grandchild").read_text())
    until = time.monotonic() + 5
    while is_running(number) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(number)


def test_too_much_memory_is_a_finding(report: Callable[[str], Report]) -> None:
    found = report("greedy")
    assert found["reach"].status == "fail"
    assert "asked for 30 GiB" in found["reach"].reason
    assert "limit is 4 GiB" in found["reach"].reason
    assert found["reach"].where is not None
    assert found["reach"].where.line == line_of("greedy", "here")


def test_a_crash_in_the_first_call_is_a_finding_on_reach(report: Callable[[str], Report]) -> None:
    found = report("crashes")
    assert [check.status for check in found.checks] == ["fail", "not_applicable", "not_applicable"]
    assert "SIGSEGV" in found["reach"].reason
    assert found["reach"].where is not None
    assert found["reach"].where.line == line_of("crashes", "here")
    assert "not asked" in found["scale"].reason


def test_a_file_that_never_ends_cannot_be_run(outcomes: Outcomes) -> None:
    error, took_s, stages = outcomes["deaf"].result()
    assert isinstance(error, MhaError)
    assert "importing layers.py:Attention: it did not end within 2 s" in str(error)
    assert stages == ["import"]
    assert took_s < 60  # it closed every pipe, and nobody waited for it


def test_stopped_by_a_person() -> None:
    stages: list[str] = []
    found = check_source(SOURCE.format(top="", inside="pass"), "Attention", {}, None, stages.append, lambda: True)
    assert {check.status for check in found.checks} == {"not_applicable"}
    assert len(found.checks) == 16
    assert "stopped" in found["reach"].reason


def test_a_missing_file_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mha_core.doctor.process.sandbox.ChildProcess", None)
    with pytest.raises(MhaError, match="does not exist"):
        check_file(Path("no_such_file.py"), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes.", "3 GiB"),
        ("MemoryError: Unable to allocate 30.0 GiB for an array with shape (4, 5)", "30.0 GiB"),
        ("MemoryError", "ran out of memory"),
        ("RuntimeError: shape '[2, 3]' is invalid for input of size 7", ""),
    ],
)
def test_memory_in_words(text: str, words: str) -> None:
    said = memory_sentence(text, 2.0)
    assert words in said
    assert said.endswith("; the limit is 2 GiB" if words else "")
    assert bool(said) == bool(words)


def test_the_deepest_own_line_of_a_dump() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "/home/me/other.py", line 9 in wait\n\n'
        f'Current thread 0x2 (most recent call first):\n  File "{os.__file__}", line 5 in walk\n'
        '  File "<string>", line 1 in made\n  File "/home/me/layers.py", line 23 in forward\n'
        '  File "/home/me/layers.py", line 99 in outer\n'
    )
    place = dumped_line(dump)
    assert place is not None
    assert (place.file, place.line) == ("layers.py", 23)
    assert dumped_line("Fatal Python error") is None
