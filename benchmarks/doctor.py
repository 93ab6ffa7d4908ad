"""`python -m benchmarks.doctor`: check up every module of `tests/doctor` and print what is caught, missed and blamed.

The output is docs/doctor.md. Wrong modules are checked up once as they are and once with their right line; right ones
and the layers of libraries as they are.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from mha_core.doctor.checkup import checkup
from mha_core.doctor.report import CheckResult, Report
from tests.doctor import library
from tests.doctor.known import FOUND, PRECISION
from tests.doctor.specimens import Specimen, all_of

CODE_LENGTH = 90


@dataclass(frozen=True)
class Wrong:
    """What was said of a wrong module, and of its repair."""

    name: str
    report: str
    caught: tuple[str, ...]
    cause: str
    line: str  # right, another, none, any
    blamed: tuple[str, ...]  # checks that still alarm after the repair


@dataclass(frozen=True)
class Right:
    """What was said of a right module."""

    name: str
    alarms: tuple[str, ...]
    warnings: tuple[str, ...]  # allowed ones
    by_design: tuple[str, ...]


def _checked(specimen: Specimen) -> Report:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return checkup(specimen.build(), **specimen.options)


def _line(specimen: Specimen, caught: Sequence[CheckResult]) -> str:
    if specimen.header.get("where") == "any":
        return "any"
    fair = {line for span in specimen.statements() for line in span} | set(specimen.also_fair)
    lines = {check.where.line for check in caught if check.where is not None}
    return "right" if lines & fair else "another" if lines else "none"


def judge_wrong(specimen: Specimen) -> Wrong:
    """Check up a wrong module and its repair."""
    checks = _checked(specimen).checks
    caught = [check for check in checks if check.id in specimen.words("expect") and check.status in FOUND]
    cause = next((check.cause for check in caught if check.cause), "")
    blamed: tuple[str, ...] = ()
    if specimen.fixes:
        with tempfile.TemporaryDirectory() as folder:
            repaired = _checked(specimen.repaired(Path(folder))).checks
        blamed = tuple(c.id for c in repaired if c.status == "fail" or (c.status == "warn" and c.id not in PRECISION))
    case = specimen.header["case"].replace("own", "")
    return Wrong(specimen.name, case, tuple(c.id for c in caught), cause, _line(specimen, caught), blamed)


def judge_right(specimen: Specimen) -> Right:
    """Check up a right module."""
    return _right(specimen.name, _checked(specimen), specimen.words("may_warn"))


def judge_layer(name_and_source: tuple[str, str]) -> Right:
    """Check up a layer of a library, found again by its name."""
    name, source = name_and_source
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return _right(name, checkup(_layers()[source]()[name]()), set())


def _right(name: str, report: Report, allowed: set[str]) -> Right:
    told = [check for check in report.checks if check.status in FOUND]
    alarms = tuple(check.id for check in told if check.status == "fail" or check.id not in allowed)
    warned = tuple(check.id for check in told if check.id not in alarms)
    return Right(name, alarms, warned, tuple(check.id for check in report.checks if check.status == "by_design"))


def _layers() -> dict[str, Callable[[], dict[str, library.Builder]]]:
    return {
        "torch": library.torch_layers,
        "transformers, eager": lambda: library.transformers_layers("eager"),
        "transformers, sdpa": lambda: library.transformers_layers("sdpa"),
        "MHA Lab": library.core_layers,
    }


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _wrong_table(wrong: Sequence[Wrong]) -> list[str]:
    rows = [_row("module", "report", "caught by", "cause named", "line"), "|---|---|---|---|---|"]
    for found in wrong:
        cause = found.cause if len(found.cause) <= CODE_LENGTH else f"{found.cause[:CODE_LENGTH]}…"
        rows.append(_row(found.name, found.report, ", ".join(found.caught) or "**missed**", cause, found.line))
    return rows


def _right_table(right: Sequence[Right], title: str) -> list[str]:
    rows = [_row(title, "false alarm", "allowed warning", "by design"), "|---|---|---|---|"]
    for found in right:
        alarm = f"**{', '.join(found.alarms)}**" if found.alarms else ""
        rows.append(_row(found.name, alarm, ", ".join(found.warnings), ", ".join(found.by_design)))
    return rows


def main() -> None:
    """Measure and print."""
    named = [(name, source) for source, layers in _layers().items() for name in layers()]
    with ProcessPoolExecutor(2) as pool:
        wrong = list(pool.map(judge_wrong, all_of("bad")))
        right = list(pool.map(judge_right, all_of("good")))
        layers = list(pool.map(judge_layer, named))
    caught, repaired = sum(bool(found.caught) for found in wrong), sum(bool(found.blamed) for found in wrong)
    lines = [found.line for found in wrong if found.caught and found.line != "any"]
    blamed = [found.name for found in wrong if found.blamed]
    print(f"""# What the check-up is measured on

Attention modules as people write them, in `tests/doctor`: wrong ones that it must find, right ones that it must leave
alone, and layers of libraries. Some wrong ones stand for a collected report (its number is named), the others are of
the same kinds. A wrong module counts as caught where one of the checks expected for it fails or warns.
`python -m benchmarks.doctor` prints this page.

| | modules | |
|---|---:|---|
| wrong | {len(wrong)} | {caught} caught, {len(wrong) - caught} missed |
| of these, with one fair line to point at | {len(lines)} | {lines.count("right")} right, \
{lines.count("another")} another line, {lines.count("none")} none |
| the same with the right line | {sum(bool(s.fixes) for s in all_of("bad"))} | {repaired} false alarms: \
{", ".join(blamed) or "none"} |
| right | {len(right)} | {sum(bool(found.alarms) for found in right)} false alarms |
| layers of libraries | {len(layers)} | {sum(bool(found.alarms) for found in layers)} false alarms |

Warnings of `fully_masked` (a row of minus infinity alone is NaN) and `half_precision` (the scale comes after the
product) are true of many right modules and allowed where a module says so.

## Wrong
""")
    print("\n".join([*_wrong_table(wrong), "", "## Right", "", *_right_table(right, "module"), ""]))
    print("\n".join(["## Libraries", "", *_right_table(layers, "layer")]))


if __name__ == "__main__":
    main()
