"""Torch's own layers, in all their flags."""

from __future__ import annotations

import pytest

from tests.doctor.known import assert_library_healthy
from tests.doctor.library import Builder, torch_layers

LAYERS = torch_layers()


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_a_library_layer_is_not_blamed(build: Builder) -> None:
    assert_library_healthy(build)
