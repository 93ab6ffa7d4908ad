"""A report in the order a reader wants it: by status, the worst first; what one reason left unasked stands together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mha_core.doctor.report import CheckResult, Report, Status

TITLES: Mapping[Status, str] = {
    "fail": "Failed",
    "warn": "Works today, dangerous tomorrow",
    "by_design": "Unusual, and right",
    "pass": "Passed",
    "not_applicable": "Could not be asked",
}
WORDS: Mapping[Status, str] = {
    "fail": "fail",
    "warn": "warn",
    "by_design": "by design",
    "pass": "pass",
    "not_applicable": "not applicable",
}
VERDICTS = {"pass": "Nothing wrong was found.", "warn": "Nothing is wrong today.", "fail": "Something is wrong."}


def groups(report: Report) -> Iterator[tuple[Status, list[tuple[str, CheckResult]]]]:
    """Give for each status that occurs its checks, each with the name or names it stands for."""
    for status in TITLES:
        named: dict[object, list[CheckResult]] = {}
        for check in report.checks:
            if check.status == status:
                named.setdefault(check.reason if status == "not_applicable" else check.id, []).append(check)
        if named:
            yield status, [(", ".join(check.id for check in alike), alike[0]) for alike in named.values()]


def spell(value: Any) -> str:
    """Write a value for a reader: four digits for numbers that are not whole, yes and no, lists with commas."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(f"({spell(item)})" if isinstance(item, list) else spell(item) for item in value) or "none"
    return str(value)
