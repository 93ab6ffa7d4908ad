"""`python -m ui`: start the dashboard. The process is settled before the first request is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[None]:
    """Import torch and settle the process before serving."""
    from ui import process

    process.settle()
    process.route_through_app()
    yield


app = st.App(ROOT / "app.py", lifespan=lifespan)

if __name__ == "__main__":
    app.run()
