"""Mistakes from real reports, every second one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.known import assert_caught
from tests.doctor.specimens import Specimen, all_of

BAD = [bad for bad in all_of("bad") if bad.header["case"] != "own"][0::2]


@pytest.mark.parametrize("specimen", BAD, ids=[bad.name for bad in BAD])
def test_the_mistake_is_found_and_the_repair_is_not_blamed(specimen: Specimen, tmp_path: Path) -> None:
    assert_caught(specimen, tmp_path)
