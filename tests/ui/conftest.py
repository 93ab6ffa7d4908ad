"""Settings of the tests of the pages: a settled process, and no remarks of Streamlit about bare mode."""

import logging

import pytest

from tests.core.small_models import MAKERS, save
from tests.ui.real import MiniLM
from ui import process

logging.getLogger("streamlit").setLevel(logging.ERROR)


@pytest.fixture(autouse=True, scope="session")
def _settled() -> None:
    """Settle the process once, so that no page run pays for the imports."""
    process.settle()


@pytest.fixture
def minilm() -> MiniLM:
    """A second copy of MiniLM, to be changed by the test."""
    return MiniLM()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small random models with a tokenizer of the test's own; the vision model needs none."""
    root = tmp_path_factory.mktemp("models")
    return {
        family: str(save(MAKERS[family], root / family, with_tokenizer=family != "vit", seed=number))
        for number, family in enumerate(("gpt2", "llama", "t5", "vit"))
    }
