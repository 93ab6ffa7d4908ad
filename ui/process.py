"""The server process, settled once: what every session shares and no page may change.

A full garbage collection after every rerun is off (`postScriptGC` in config.toml), so the heavy imports are frozen out
of the collector here and a slow collection of our own runs beside the sessions. Torch's thread count is process-wide,
so it is set here and nowhere else. And a folder named `pages/` makes Streamlit run the very first deep link without
`app.py`, unless it is told before that the folder is not in use.
"""

from __future__ import annotations

import functools
import gc
import threading
import time

import plotly.graph_objects  # noqa: F401  # imported here so that no session waits for it
import torch
from streamlit.runtime.pages_manager import PagesManager

from mha_core.experiment import Experiment, run

COLLECT_EVERY_S = 60.0


@functools.cache
def settle() -> None:
    """Settle the process; calls after the first do nothing."""
    torch.set_num_threads(1)  # sessions run side by side: more threads each only make them wait for one another
    run(Experiment())  # the first run pays for lazy imports inside torch
    gc.collect()
    gc.freeze()
    threading.Thread(target=_collect_slowly, name="slow-gc", daemon=True).start()


def route_through_app() -> bool:
    """Tell Streamlit that pages come from `app.py`; returns whether it thought otherwise."""
    thought_otherwise = PagesManager.uses_pages_directory is not False
    PagesManager.uses_pages_directory = False
    return thought_otherwise


def _collect_slowly() -> None:
    while True:
        time.sleep(COLLECT_EVERY_S)
        gc.collect()
