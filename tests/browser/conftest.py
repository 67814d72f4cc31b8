"""A real Chromium for the pages that kvferry makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.browser.opening import Opened

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no Chromium on this machine: `make setup-browser` as root on Debian or Ubuntu, or install "
    f"one of {', '.join(NAMES)} by hand"
)


# Playwright's event loop counts as running in this thread until it is stopped, and asynchronous
# tests of other modules could not run theirs: so not for the session.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module; without it its tests are skipped by name, and fail in CI."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """Opens pages, and closes them after the test."""
    opener = Opened(browser, tmp_path)
    yield opener
    opener.close()
