"""What is asked of the check-up for every specimen; the test files beside it ask in portions, to run side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from mha_core.doctor.checkup import checkup
from mha_core.doctor.report import CheckResult, Report
from tests.doctor.specimens import Specimen

FOUND = ("fail", "warn")
PRECISION = {"fully_masked", "half_precision"}  # minus infinity in an empty row, a scale after the product


def told(results: list[CheckResult]) -> str:
    return "\n".join(f"{r.id} {r.status}: {r.reason} [{r.cause}] {r.where}" for r in results)


def findings(report: Report) -> list[CheckResult]:
    """What is wrong or dangerous, and every check that the doctor itself could not do."""
    return [result for result in report.checks if result.status in FOUND or "the doctor could not" in result.reason]


def examined(specimen: Specimen, *, only: list[str] | None = None) -> Report:
    torch.manual_seed(0)
    return checkup(specimen.build(), **specimen.options, only=only)


def assert_caught(specimen: Specimen, folder: Path) -> None:
    """One of the expected checks finds the mistake and points at it; none of them minds the repaired file."""
    expected = sorted(specimen.words("expect"))
    report = examined(specimen, only=expected)
    caught = [result for result in report.checks if result.status in FOUND]
    assert caught, f"missed\n{told(list(report.checks))}"
    assert report.verdict != "pass"
    if specimen.header.get("where") != "any":
        fair = {line for span in specimen.statements() for line in span} | set(specimen.also_fair)
        lines = {result.where.line for result in caught if result.where is not None}
        assert lines & fair, f"points at {lines}, not at {fair}\n{told(caught)}"
    if specimen.fixes:
        repaired = examined(specimen.repaired(folder), only=expected)
        alarms = [r for r in findings(repaired) if not (r.status == "warn" and r.id in PRECISION)]
        assert not alarms, f"the repaired file is blamed\n{told(alarms)}"


def assert_healthy(specimen: Specimen) -> None:
    """Nothing fails; a warning only where the header allows it; by design where the header expects it."""
    report = examined(specimen)
    allowed = specimen.words("may_warn")
    alarms = [r for r in findings(report) if r.status == "fail" or r.id not in allowed]
    assert not alarms, f"false alarm\n{told(alarms)}"
    by_design = {result.id for result in report.checks if result.status == "by_design"}
    assert by_design <= specimen.words("by_design") | {"fully_masked", "gradients"}


def assert_library_healthy(build: Callable[[], nn.Module]) -> None:
    """A layer of a library gets neither failure nor warning."""
    torch.manual_seed(0)
    alarms = findings(checkup(build()))
    assert not alarms, f"false alarm\n{told(alarms)}"
