"""Settings of the tests of the pages: a settled process, and no remarks of Streamlit about bare mode."""

import logging

import pytest

from ui import process

logging.getLogger("streamlit").setLevel(logging.ERROR)


@pytest.fixture(autouse=True, scope="session")
def _settled() -> None:
    """Settle the process once, so that no page run pays for the imports."""
    process.settle()
