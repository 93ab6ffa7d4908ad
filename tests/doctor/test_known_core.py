"""Our own layer, in every way it can be written."""

from __future__ import annotations

import pytest

from tests.doctor.known import assert_library_healthy
from tests.doctor.library import Builder, core_layers

LAYERS = core_layers()


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_a_library_layer_is_not_blamed(build: Builder) -> None:
    assert_library_healthy(build)
