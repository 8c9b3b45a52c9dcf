"""A browser for the tests of pages."""

from collections.abc import Iterator
from typing import Any

import pytest
from browser.served import browser_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for a file of this folder, which says when it is skipped. It ends with the file: Playwright keeps an
    event loop running in this thread for as long, and asyncio.run() fails beside it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=browser_path(), args=["--disable-gpu", "--mute-audio"])
        yield started
        started.close()
