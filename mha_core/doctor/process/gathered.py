"""What a check-up in other processes has found so far: results, deaths that became findings, and what was printed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mha_core.doctor.report import CHECK_IDS, CheckId, CheckResult, Place, Report
from mha_core.errors import MhaError

START_S, TOTAL_SHARES = 120.0, 10
FLOOD_BYTES = 1_000_000
STAGES = {"import": "importing {}", "construct": "constructing {}", "examine": "the first call of {}"}


@dataclass(frozen=True)
class Options:
    """What was declared about the module, which checks to do, and the limits.

    Attributes:
        seconds: for each of import, construction, the first calls and every check; ten times that in all.
        memory_gib: above what the process holds before the foreign code is imported.
    """

    embed_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    causal: bool | None = None
    batch_first: bool | None = None
    call: str | None = None
    only: Sequence[CheckId] | None = None
    seconds: float = 20.0
    memory_gib: float = 4.0

    @property
    def ids(self) -> list[CheckId]:
        """The checks to do, in their order."""
        return [check_id for check_id in CHECK_IDS if self.only is None or check_id in self.only]

    def declared(self) -> dict[str, Any]:
        """Give what was declared, by name."""
        names = ("embed_dim", "num_heads", "num_kv_heads", "causal", "batch_first", "call")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Death:
    """How a child ended before it was done."""

    stage: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    where: Place | None = None


class Gathered:
    """What all children of one check-up have said."""

    def __init__(self, target: str, options: Options) -> None:
        self.target, self.options = target, options
        self.module = target
        self.assumed: dict[str, Any] = {}
        self.results: dict[str, CheckResult] = {}
        self.unlimited: list[str] = []
        self.printed_bytes = 0
        self.until = time.monotonic() + START_S + TOTAL_SHARES * options.seconds

    @property
    def pending(self) -> list[CheckId]:
        return [check_id for check_id in self.options.ids if check_id not in self.results]

    def skip(self, why: str) -> None:
        """Leave all that is pending unasked."""
        for check_id in self.pending:
            self.results[check_id] = CheckResult(check_id, "not_applicable", f"not asked: {why}")

    def report(self) -> Report:
        limits = f"{self.options.seconds:g} s for each check, {self.options.memory_gib:g} GiB of memory"
        limits += f"; this system sets no limit of {', '.join(self.unlimited)}" if self.unlimited else ""
        self._note_flood()
        checks = tuple(self.results[check_id] for check_id in self.options.ids)
        return Report(self.module, self.assumed | {"limits": limits}, checks)

    def _note_flood(self) -> None:
        found = self.results.get("determinism")
        if self.printed_bytes >= FLOOD_BYTES and found is not None and found.status == "pass":
            reason = f"it prints {self.printed_bytes / 1e6:.1f} MB during a check-up; printing belongs to the caller"
            evidence = dict(found.evidence) | {"printed_bytes": self.printed_bytes}
            self.results["determinism"] = replace(found, status="warn", reason=reason, evidence=evidence)


def bury(death: Death, gathered: Gathered) -> None:
    """Make a finding of a death, or an error where there is nothing yet that could be checked."""
    if death.stage in gathered.options.ids:
        finding = CheckResult(death.stage, "fail", death.reason, death.evidence, "", death.where)
        gathered.results[death.stage] = finding
        return
    during = STAGES.get(death.stage, "starting a process for {}").format(gathered.target)
    if not gathered.results and death.stage != "examine":
        where = f" ({death.where})" if death.where else ""
        raise MhaError("doctor", gathered.target, "code that can be run", problem=f"{during}: {death.reason}{where}")
    if not gathered.results:
        first = "reach" if "reach" in gathered.pending else gathered.pending[0]
        gathered.results[first] = CheckResult(first, "fail", death.reason, death.evidence, "", death.where)
    gathered.skip(f"{during}: {death.reason}")
