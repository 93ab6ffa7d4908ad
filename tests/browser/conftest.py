"""The real server and the real browser of these tests: one of each per run, a fresh browser context per test.

A test asks for `visit`, which opens a page and waits until it is ready. What goes wrong in a page meanwhile (console
errors, exceptions, failed responses) is collected and fails the test at its end, with the server's output beside it.
All tests here carry the mark "browser" and go to one xdist worker, so that one server serves them.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, expect, sync_playwright

from tests.browser import parts
from tests.browser.chromium import find

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMEOUT_MS = 15_000
START_S = 90
# On a link to a page Streamlit first asks for these two beside the page, is told 404, and finds them at the root.
PROBED = re.compile(r"/\w+/_stcore/(health|host-config)")
running: list[Server] = []

expect.set_options(timeout=TIMEOUT_MS)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Show the servers' output beside a failure."""
    report = yield
    if report.failed:
        for server in running:
            report.sections.append((f"server {server.url}", server.output()))
    return report


@dataclass(eq=False)
class Server:
    """A server process; `command` is what follows the interpreter, without the port option."""

    command: Sequence[str]
    port_option: str = "--port"

    def __enter__(self) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://localhost:{port}"
        self.log = tempfile.TemporaryFile()
        command = [sys.executable, *self.command, self.port_option, str(port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=subprocess.STDOUT)
        running.append(self)
        try:
            self._wait()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=5) as answer:
                    if answer.read() == b"ok":
                        return
            except (URLError, OSError):
                time.sleep(0.1)  # nothing to await: the port is not open yet
        pytest.fail("The server did not start.")

    def __exit__(self, error: type[BaseException] | None = None, *_: object) -> None:
        if error is not None:
            print(f"server {self.url}\n{self.output()}")  # shown by pytest; the server is gone when the report is made
        running.remove(self)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def output(self) -> str:
        """Give what the server has printed so far, at most the last 4,000 characters."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4_000:]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start the server as `make run` does."""
    with Server(["-m", "ui"]) as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Visitor:
    """Opens pages, each in a browser context of its own, and notes what goes wrong in them."""

    browser: Browser
    start: Callable[[], Server]
    problems: list[str] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def __call__(
        self,
        path: str = "/",
        *,
        server: Server | None = None,
        watch: Callable[[Page], object] | None = None,
        ready: Callable[[Page], object] | None = None,
        **options: object,
    ) -> Page:
        """Open an address and wait until it is ready.

        Args:
            path: what follows the server's address. server: another server than the shared one.
            watch: called with the page before it is opened. options: those of a browser context.
            ready: waits until the page is ready; by default, until the head grid of page Attention is painted.
        """
        context = self.browser.new_context(**{"viewport": {"width": 1366, "height": 900}} | options)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("response", self._response)
        page.on("dialog", self._dialog)
        if watch is not None:
            watch(page)
        self.pages.append(page)
        page.goto((server or self.start()).url + path)
        if ready is not None:
            ready(page)
            return page
        # A server of the test's own may still have torch to import, when it was started by `streamlit run`.
        parts.wait_until_painted(page, timeout_ms=None if server is None else START_S * 1000)
        return page

    def _console(self, message: object) -> None:
        if message.type == "error" and not PROBED.fullmatch(urlsplit(message.location["url"]).path):
            self.problems.append(f"console: {message.text} ({message.location['url']})")

    def _response(self, response: Response) -> None:
        is_probe = response.status == 404 and PROBED.fullmatch(urlsplit(response.url).path)
        if response.status >= 400 and not is_probe:
            self.problems.append(f"response: {response.status} {response.url}")

    def _dialog(self, dialog: object) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def close(self) -> None:
        """Close every context."""
        for page in self.pages:
            page.context.close()


@pytest.fixture
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """Open pages; at the end of the test nothing may have gone wrong in any of them."""
    visitor = Visitor(browser, lambda: request.getfixturevalue("server"))
    yield visitor
    visitor.close()
    assert visitor.problems == []
