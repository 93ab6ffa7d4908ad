"""Attention layers of transformers, eager and fused."""

from __future__ import annotations

import pytest

from tests.doctor.known import assert_library_healthy
from tests.doctor.library import transformers_layers

FAMILIES = ("BERT", "GPT-2", "LLaMA", "Mistral", "T5", "ViT", "Whisper")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_familys_layer_is_not_blamed(family: str, implementation: str) -> None:
    pytest.importorskip("transformers")
    assert_library_healthy(transformers_layers(implementation)[family])
