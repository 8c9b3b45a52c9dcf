"""The server of `maskwright watch --web` in this process, and pages of it in one Chromium."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maskwright.monitor.watch.server import RunIndex, application

TOKEN = "a-token-of-the-tests-alone"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Served:
    """One address. What it serves may change from one page to the next."""

    def __init__(self) -> None:
        self.port = 0
        self._app: Any = None
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def folder(self, folder: Path) -> str:
        """Serves the runs below it. Gives back the address with the token, as it is printed."""
        self._app = application(RunIndex([str(folder)], stop_seconds=60.0), token=TOKEN, host="127.0.0.1")
        return f"{self.address}#token={TOKEN}"

    def start(self) -> None:
        import uvicorn

        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._delegate, interface="asgi3", log_level="warning", lifespan="off", timeout_graceful_shutdown=1
            )
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        self._listening = listening

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    async def _delegate(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


def until(page: Any, expression: str, seconds: float = 120.0) -> None:
    """Waits until the expression is true in the page. (Playwright's own way evaluates a text there, which the page's
    content security policy forbids.)"""
    last = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < last, f"is not true after {seconds:g} seconds: {expression}"
        page.wait_for_timeout(50)


@contextmanager
def opened(
    browser: Any, address: str, *, ready: str = "#list li", refused: str | None = None, **context: Any
) -> Iterator[Any]:
    """A page with storage of its own, once it shows `ready`. Raises `AssertionError` at the end if a script failed, or
    if the browser complained of something, such as what the content security policy forbids, without `refused` in
    it."""
    given = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **context}
    inside = browser.new_context(**given)
    inside.set_default_timeout(120_000)
    page = inside.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(f"{error}\n{error.stack}"))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    try:
        page.goto(address)
        page.wait_for_selector(ready)
        yield page
        left = [one for one in complaints if refused is None or refused not in one]
        assert not left, left
    finally:
        inside.close()
