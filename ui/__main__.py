"""`python -m ui`: start the dashboard. The process is settled before the first request is answered."""

from __future__ import annotations

import argparse
import os
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


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m ui", description="Start the MHA Lab dashboard.")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--address", default="localhost", help="0.0.0.0 lets other machines in")
    options = parser.parse_args()
    os.chdir(ROOT)  # Streamlit looks for .streamlit/config.toml here
    print(f"MHA Lab starts at http://{options.address}:{options.port}", flush=True)
    app.run(config={"server.port": options.port, "server.address": options.address})


if __name__ == "__main__":
    main()
