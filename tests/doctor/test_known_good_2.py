"""Right modules in many styles, the others."""

from __future__ import annotations

import pytest

from tests.doctor.known import assert_healthy
from tests.doctor.specimens import Specimen, all_of

GOOD = all_of("good")[1::2]


@pytest.mark.parametrize("specimen", GOOD, ids=[good.name for good in GOOD])
def test_a_right_module_is_not_blamed(specimen: Specimen) -> None:
    assert_healthy(specimen)
