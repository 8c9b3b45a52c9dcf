"""One browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser.served import browser_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all files of this folder, which say when they are skipped."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=browser_path(), args=["--disable-gpu", "--mute-audio"])
        yield started
        started.close()
