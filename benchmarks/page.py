"""Page 1 in real Chromium: slider to painted, bytes, long tasks, remounts, cold start; against an empty page.

Both servers run side by side and take turns. A key press on the heads slider starts the clock; the frame after the
grid's paint (or the text's change) stops it. Bytes are what the websocket received. Every press asks for a state not
shown before, so that no cache answers.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.report import Row
from tests.browser import chromium

ROOT = Path(__file__).resolve().parent.parent
LENGTH_BARS = {64: 2.0, 128: 2.0, 256: 2.5, 700: 2.5}  # tokens -> bar of the ratio
ROUNDS = 5  # of two presses each, to 9 and to 10 heads, with a seed of its own
EMBED_DIM = 720  # divisible by 8, 9 and 10 heads
PAGE_KB, GRID_KB, COLD_MS = 300, 150, 4000
EMPTY_PAGE = """
import gc, streamlit as st, torch
if not gc.get_freeze_count():
    gc.collect(); gc.freeze()
heads = st.slider("Heads H", 1, 16, 8)
st.html(f'<div class="answer">{heads}</div>')
"""
WATCH = """() => {
  const find = (root) => {
    for (const node of root.querySelectorAll("*")) {
      if (node.matches(".head-grid, .answer")) return node;
      const inner = node.shadowRoot && find(node.shadowRoot);
      if (inner) return inner;
    }
  };
  const mark = () => { const node = find(document); return node && (node.dataset.painted || node.textContent); };
  const watched = window.watched = { longTasks: [], took: null };
  new PerformanceObserver((list) => list.getEntries().forEach((task) => watched.longTasks.push(task.duration)))
    .observe({ type: "longtask" });
  document.addEventListener("keydown", () => {
    Object.assign(watched, { start: performance.now(), took: null, seen: false, shown: mark(), longTasks: [] });
  }, true);
  const observer = new MutationObserver(() => {
    if (!watched.start || watched.seen || mark() === watched.shown) return;
    watched.seen = true;
    requestAnimationFrame(() => setTimeout(() => { watched.took = performance.now() - watched.start; }, 0));
  });
  observer.observe(document.body, { subtree: true, childList: true, characterData: true });
  const grid = find(document);
  if (grid.matches(".head-grid")) observer.observe(grid, { attributes: true });
  watched.mounts = () => Number(find(document).dataset.mounts || 1);
}"""


@dataclass
class Presses:
    """What key presses cost, one entry per press; `mounts` is the most the grid was mounted on one page."""

    took_ms: list[float] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)
    largest_message_bytes: list[int] = field(default_factory=list)
    long_tasks_ms: list[float] = field(default_factory=list)
    mounts: int = 1


@contextlib.contextmanager
def serving(command: list[str], folder: Path) -> Iterator[str]:
    """Run a server on a free port until the end of the block; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*command, str(port)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://localhost:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health"):
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)


def press_slider(browser: Browser, address: str, presses: Presses) -> None:
    """Open a page, move its heads slider twice, and note what each press cost."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page, received = context.new_page(), [0]
    page.on("websocket", lambda ws: ws.on("framereceived", lambda frame: received.append(len(frame))))
    page.goto(address)
    page.wait_for_selector(".answer, .large-map[data-painted]")
    page.wait_for_timeout(1500)
    page.get_by_role("slider", name="Heads H").focus()
    page.evaluate(WATCH)
    for _ in range(2):
        before = len(received)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => watched.took !== null", timeout=30_000)
        page.wait_for_timeout(900)  # the rest of the page follows the grid
        presses.took_ms.append(page.evaluate("watched.took"))
        presses.received_bytes.append(sum(received[before:]))
        presses.largest_message_bytes.append(max(received[before:]))
        presses.long_tasks_ms += page.evaluate("watched.longTasks")
    presses.mounts = max(presses.mounts, page.evaluate("watched.mounts()"))
    context.close()


def cold_start(browser: Browser, address: str) -> float:
    """Open the page in a browser without a cache; milliseconds until the grid is painted."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page: Page = context.new_page()
    start = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".head-grid[data-painted]", timeout=60_000)
    took = (time.perf_counter() - start) * 1e3
    context.close()
    return took


def rows() -> Iterator[Row]:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        (Path(scratch) / "empty.py").write_text(EMPTY_PAGE)
        (Path(scratch) / ".streamlit").symlink_to(ROOT / ".streamlit")
        empty_command = [sys.executable, "-m", "streamlit", "run", "empty.py", "--server.port"]
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        with serving([sys.executable, "-m", "ui", "--port"], ROOT) as ours:
            cold = cold_start(browser, ours)
            yield Row(
                "cold browser, first heatmap painted, torch imported",
                cold,
                COLD_MS,
                "ms",
                "first request of the server",
            )
            with serving(empty_command, Path(scratch)) as empty:
                yield from _length_rows(browser, ours, empty)
        browser.close()


def _length_rows(browser: Browser, ours: str, empty: str) -> Iterator[Row]:
    long_tasks: list[float] = []
    mounts = 1
    for length, bar in LENGTH_BARS.items():
        grid, text = Presses(), Presses()
        for seed in range(ROUNDS):
            query = f"source=random&batch=1&q_len={length}&embed_dim={EMBED_DIM}&num_heads=8&seed={seed}"
            press_slider(browser, f"{ours}/?{query}", grid)
            press_slider(browser, empty, text)
        own, other = statistics.median(grid.took_ms), statistics.median(text.took_ms)
        detail = f"{own:.0f} ms against {other:.0f} ms, slowest {max(grid.took_ms):.0f} ms, n={len(grid.took_ms)}"
        yield Row(f"slider to grid painted / empty page, 8-10 heads x {length}", own / other, bar, "x", detail)
        kilobytes = max(grid.received_bytes) / 1e3
        yield Row(f"bytes of one change, 8-10 heads x {length}", kilobytes, PAGE_KB, "kB", "largest of all presses")
        kilobytes = max(grid.largest_message_bytes) / 1e3
        yield Row(f"largest message of one change, 8-10 heads x {length}", kilobytes, GRID_KB, "kB", "the grid")
        long_tasks += grid.long_tasks_ms
        mounts = max(mounts, grid.mounts)
    worst = f"longest {max(long_tasks):.0f} ms" if long_tasks else "none"
    yield Row("long tasks over 50 ms, all presses", len(long_tasks), 0, "", worst)
    yield Row("remounts of the grid", mounts - 1, 0, "", "all presses")
