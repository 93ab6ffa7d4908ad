"""What a check-up says: one result per check, and a report that holds them. Plain data, ready for JSON.

Holds no knowledge of how a check is done, and none of how it looks on a page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mha_core.errors import MhaError

CheckId = Literal[
    "reach",
    "batch_independence",
    "causality",
    "padding",
    "constant_values",
    "permutation",
    "scale",
    "row_sums",
    "fully_masked",
    "half_precision",
    "mode_round_trip",
    "cross_attention",
    "decode",
    "gqa",
    "gradients",
    "determinism",
]
CHECK_IDS: tuple[CheckId, ...] = get_args(CheckId)
QUESTIONS: dict[CheckId, str] = {
    "reach": "Does every output depend on the tokens, heads and channels it should, and on no other query?",
    "batch_independence": "Does a sample stay the same whatever else is in the batch?",
    "causality": "Is the future hidden in every mode, whatever the size of the scores?",
    "padding": "Are hidden keys without any effect, and visible ones not?",
    "constant_values": "Does a weighted mean of equal values give that value back?",
    "permutation": "Do tokens in another order give the same outputs in that order?",
    "scale": "Are scores divided by the root of head_dim, in every path?",
    "row_sums": "Do the weights of each query sum to 1 over the keys?",
    "fully_masked": "What happens to a query that may attend to nothing, forward and backward?",
    "half_precision": "Does it hold in float16, bfloat16 and under autocast?",
    "mode_round_trip": "Do train, eval and train again leave everything as it was?",
    "cross_attention": "Do queries and keys of different lengths work?",
    "decode": "Does one token at a time give what the whole sequence gives?",
    "gqa": "Does each query head read the key/value head it should?",
    "gradients": "Does a gradient reach every parameter, and stay finite?",
    "determinism": "Does eval give the same twice, and leave its input alone?",
}
Status = Literal["pass", "warn", "fail", "by_design", "not_applicable"]
STATUSES: tuple[Status, ...] = get_args(Status)
Verdict = Literal["pass", "warn", "fail"]
_PLACE = re.compile(r"(.*?):(\d+)(?:: (.*))?", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """A line of the person's code; reads as "file.py:23: q = q.view(B, H, S, d)"."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.code}" if self.code else "")


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        id: of the check.
        status: "by_design" is unusual and right; "not_applicable" could not be asked of this module.
        reason: one sentence a tired engineer understands.
        evidence: numbers by name, units in the names, with the smallest failing input where there is one.
        cause: the likely mistake by name, "" where none is known ("heads were split with view without a transpose").
        where: the source line to look at, None where no operation could be tied to the finding.
    """

    id: CheckId
    status: Status
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    cause: str = ""
    where: Place | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give the result as JSON data, numbers that JSON lacks as words."""
        return {
            "id": self.id,
            "status": self.status,
            "reason": self.reason,
            "evidence": _plain(self.evidence),
            "cause": self.cause,
            "where": None if self.where is None else str(self.where),
        }


@dataclass(frozen=True)
class Report:
    """A check-up.

    Attributes:
        module: its class and, where known, its file.
        assumed: what was taken for granted about sizes, arguments and masks, by name; each can be corrected.
        checks: one per check id, in the order of `CHECK_IDS`.
    """

    module: str
    assumed: Mapping[str, Any]
    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all checks; what is by design or not applicable does not count."""
        found = {check.status for check in self.checks}
        return "fail" if "fail" in found else "warn" if "warn" in found else "pass"

    def __getitem__(self, check_id: str) -> CheckResult:
        return next(check for check in self.checks if check.id == check_id)

    def as_dict(self) -> dict[str, Any]:
        """Give the report as JSON data: module, assumed, verdict, checks."""
        return {
            "module": self.module,
            "assumed": _plain(self.assumed),
            "verdict": self.verdict,
            "checks": [check.as_dict() for check in self.checks],
        }


def read_report(data: object) -> Report:
    """Read what `Report.as_dict` gave, from JSON.

    Raises:
        MhaError: field "report"; it is not such a report.
    """
    try:
        if not isinstance(data, Mapping):
            raise TypeError("not an object of JSON")
        return Report(str(data["module"]), dict(data["assumed"]), tuple(_read_check(check) for check in data["checks"]))
    except (KeyError, TypeError, ValueError) as error:
        raise MhaError(
            "report",
            "a file",
            "what the command's --json printed",
            problem=f"this is no report of the doctor: {error!r}",
        ) from None


def _read_check(data: Mapping[str, Any]) -> CheckResult:
    check_id, status = CHECK_IDS[CHECK_IDS.index(data["id"])], STATUSES[STATUSES.index(data["status"])]
    place = None if data["where"] is None else _PLACE.fullmatch(data["where"])
    if data["where"] is not None and place is None:
        raise ValueError(data["where"])
    where = None if place is None else Place(place[1], int(place[2]), place[3] or "")
    return CheckResult(check_id, status, str(data["reason"]), dict(data["evidence"]), str(data["cause"]), where)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return str(value)
