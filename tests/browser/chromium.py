"""Where the browser of these tests is.

`find` looks at the variable CHROMIUM, then for a Chromium or Chrome on the path, then for the one that playwright
brings along. `python -m tests.browser.chromium` makes sure there is one: it installs Chromium with the system's package
manager where it may, else with playwright, and otherwise ends with one sentence that says what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
APT = (("apt-get", "update"), ("apt-get", "install", "-y", "chromium"))
PLAYWRIGHT = ((sys.executable, "-m", "playwright", "install", "chromium"),)
ADVICE = (
    "The browser tests need Chromium and it could not be installed here: install the package 'chromium', "
    "or set CHROMIUM to the path of a Chromium or Chrome."
)


def find() -> str:
    """Give the path of a browser.

    Raises:
        FileNotFoundError: there is none; the message says what to install.
    """
    named = os.environ.get("CHROMIUM")
    if named:
        path = shutil.which(named)
        if path is None:
            raise FileNotFoundError(f"CHROMIUM is {named!r}, which is not a program: set it to a Chromium or Chrome.")
        return path
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    bundled = _bundled()
    if bundled is None:
        raise FileNotFoundError(ADVICE)
    return bundled


def _bundled() -> str | None:
    """Give playwright's own browser, where it was downloaded."""
    try:
        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    except Error:
        return None
    return path if Path(path).is_file() else None


def ensure() -> str:
    """Find a browser, or install one.

    Raises:
        FileNotFoundError: there is none and none could be installed.
    """
    may_use_apt = os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get") is not None
    ways = [(), APT, PLAYWRIGHT] if may_use_apt else [(), PLAYWRIGHT]
    for way in ways:
        for command in way:
            print("No Chromium yet:", " ".join(command), flush=True)
            subprocess.run(command, check=False)
        try:
            return find()
        except FileNotFoundError:
            if os.environ.get("CHROMIUM"):
                raise
    raise FileNotFoundError(ADVICE)


if __name__ == "__main__":
    try:
        print("Chromium:", ensure())
    except FileNotFoundError as error:
        sys.exit(str(error))
