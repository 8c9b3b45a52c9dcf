"""The page of `maskwright watch --web`: its files, and the JSON that it requests. docs/watch.md lists the addresses.

Clients name runs by id and never by path. Threads read and wait, so that the server can answer meanwhile.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from maskwright.core.console import answer, print_exception
from maskwright.core.errors import InputError, MaskwrightError, as_record
from maskwright.core.extras import missing, require
from maskwright.monitor import run as target
from maskwright.monitor.watch import details
from maskwright.monitor.watch.guard import Guard, given_token, is_loopback, new_token
from maskwright.monitor.watch.runs import Runs, Watched
from maskwright.monitor.watch.series import RunCurves
from maskwright.run.directory import Request, RunDirectory
from maskwright.run.grown import METRICS

PAGE = os.path.join(os.path.dirname(__file__), "page")
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PLOTLY = os.path.join("package_data", "plotly.min.js")
FRESH_SECONDS = 1.0
"""Pages that ask within this time share one refresh."""
STOP_SECONDS = 120.0
"""Time for a run to save, as with `maskwright stop`."""
KEPT_RUNS = 1_000
"""Runs whose curves are kept in memory."""
MOST_SERIES = 1_000
"""Runs times metrics of one request."""
NEEDED = ("starlette", "uvicorn", "plotly")


class NoRun(InputError):
    """An id that no run has."""


class RunIndex:
    """The server's state; threads call its methods."""

    def __init__(self, folders: Sequence[str], *, stop_seconds: float = STOP_SECONDS) -> None:
        self.runs, self.curves = Runs(folders), lru_cache(KEPT_RUNS)(RunCurves)
        self._stop_seconds = stop_seconds
        self._looked = float("-inf")
        self._lock, self._pressing = threading.Lock(), threading.Lock()
        self._stopping: dict[str, RunDirectory] = {}

    def all(self) -> dict[str, Any]:
        self._look()
        return self.runs.to_json()

    def run(self, id_: str) -> Watched:
        """Raises `NoRun` for an id that no run has."""
        watched = self.runs.get(id_)
        if watched is None:
            self._look()
            watched = self.runs.get(id_)
        if watched is None:
            raise NoRun("no run has this id", where=id_[:40], fix="see the runs in /api/runs")
        return watched

    def _look(self) -> None:
        with self._lock:
            if time.monotonic() - self._looked >= FRESH_SECONDS:
                self.runs.refresh()
                self._looked = time.monotonic()

    def details(self, id_: str) -> dict[str, Any]:
        self._look()
        return details.details(self.run(id_))

    def series(
        self, ids: Sequence[str], metrics: Sequence[str], points: int, first: int | None, last: int | None
    ) -> dict[str, Any]:
        """The curves of these runs; an id whose run has gone is left out."""
        if len(ids) * len(metrics) > MOST_SERIES:
            raise InputError(f"asks for over {MOST_SERIES:,} curves", where="/api/series", fix="ask for fewer at once")
        self._look()
        series_of_runs = []
        for id_ in dict.fromkeys(ids):
            watched = self.runs.get(id_)
            if watched is None:
                continue
            of_run = self.curves(watched.folder, watched.inside + METRICS)
            curves = of_run.curves(list(dict.fromkeys(metrics)), points, first, last)
            series_of_runs += [{"run": id_, "metric": name, **columns} for name, columns in curves.items()]
        return {"series": series_of_runs}

    def ask(self, id_: str, request: Request) -> dict[str, Any]:
        """Requests a stop or a checkpoint and returns the outcome. Waits until the run has saved."""
        watched = self.run(id_)
        if watched.folder.path is None:
            fix = "use `maskwright stop` on a machine that sees the folder"
            raise InputError("is at a URL, where no request can be left", where=watched.report.run, fix=fix)
        with self._pressing:
            if id_ in self._stopping:
                raise InputError("is already being asked", where=watched.report.run, fix="wait for its answer")
            self._stopping[id_] = directory = RunDirectory(watched.folder.path)
        try:
            said = target.stop(directory, request, self._stop_seconds)
        finally:
            with self._pressing:
                self._stopping.pop(id_, None)
        return {"said": said}

    def take_back(self) -> None:
        """Deletes the unanswered requests when the server ends, since it does not wait for its threads."""
        with self._pressing:
            for directory in self._stopping.values():
                directory.take_request()


# ---- the application -------------------------------------------------------------------------------------------------


def application(index: RunIndex, *, token: str, host: str) -> Any:
    """An ASGI application. `host`: the address that it is bound to."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request as Asked
    from starlette.responses import FileResponse, JSONResponse, Response
    from starlette.routing import Route

    class Answer(JSONResponse):
        def render(self, content: Any) -> bytes:
            # A half of a surrogate pair, of a name that is not UTF-8, becomes an escape of JSON.
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode(errors="backslashreplace")

    def answer(read: Callable[[Asked], dict[str, Any]], methods: Sequence[str] = ("GET",)) -> dict[str, Any]:
        async def endpoint(asked: Asked) -> Response:
            kept = {"Cache-Control": "no-store"}
            try:
                return Answer(await run_in_threadpool(read, asked), headers=kept)
            except MaskwrightError as error:
                record = as_record(error)
                told = {key: record.get(key) for key in ("what", "where", "fix")}
                return Answer({"error": told}, status_code=_code(error, asked), headers=kept)
            except Exception as error:  # a bug: the page continues, and the terminal shows it
                print_exception(error)
                told = {"what": type(error).__name__, "where": asked.url.path, "fix": "read the server's terminal"}
                return JSONResponse({"error": told}, status_code=500, headers=kept)

        return {"endpoint": endpoint, "methods": list(methods)}

    def file(path: str, kind: str, seconds: int) -> dict[str, Any]:
        async def endpoint(asked: Asked) -> Response:
            kept = {"Cache-Control": f"max-age={seconds}" if seconds else "no-cache"}
            return FileResponse(path, media_type=kind, headers=kept)

        return {"endpoint": endpoint}

    async def nothing(asked: Asked, error: Exception) -> Response:
        error_record = {"what": "there is nothing here", "where": asked.url.path[:200], "fix": "the page is at /"}
        return JSONResponse({"error": error_record}, status_code=404)

    def request(kind: Request) -> dict[str, Any]:
        return answer(lambda asked: index.ask(asked.path_params["id"], kind), ("POST",))

    routes = [
        *(Route(f"/{name}", **file(path, kind, 0)) for name, path, kind in page_files()),
        Route("/plotly.js", **file(plotly(), KINDS[".js"], 3_600)),
        Route("/api/runs", **answer(lambda asked: index.all())),
        Route("/api/runs/{id}", **answer(lambda asked: index.details(asked.path_params["id"]))),
        Route("/api/runs/{id}/log", **answer(lambda asked: _log(index, asked))),
        Route("/api/series", **answer(lambda asked: _series(index, asked))),
        Route("/api/runs/{id}/stop", **request("stop")),
        Route("/api/runs/{id}/checkpoint", **request("checkpoint")),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={404: nothing, 405: nothing}), token, host)


def _code(error: MaskwrightError, asked: Any) -> int:
    if isinstance(error, NoRun):
        return 404
    if asked.method == "POST":
        return 409
    return 400 if isinstance(error, InputError) else 503


def _log(index: RunIndex, asked: Any) -> dict[str, Any]:
    query = asked.query_params
    before, after = (_number(query.get(name), name, None) for name in ("before", "after"))
    lines = _number(query.get("lines"), "lines", 200) or 0
    return details.log(index.run(asked.path_params["id"]), query.get("search", "")[:1_000], lines, before, after)


def _series(index: RunIndex, asked: Any) -> dict[str, Any]:
    query = asked.query_params
    first, last = _number(query.get("from"), "from", None), _number(query.get("to"), "to", None)
    points = _number(query.get("points"), "points", 1_000) or 1
    return index.series(query.getlist("run"), query.getlist("metric"), points, first, last)


def _number(text: str | None, name: str, otherwise: int | None) -> int | None:
    """Parses a query parameter. Raises `InputError` unless it is a whole number, 0 or more."""
    if text is None or text == "":
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError("is not a whole number, 0 or more", where=f"{name}={text[:40]}", fix="correct it")
    return int(text)


def page_files() -> Iterator[tuple[str, str, str]]:
    """(name in the address, path, media type) of the files of the page."""
    for name in sorted(os.listdir(PAGE)) if os.path.isdir(PAGE) else []:
        kind = KINDS.get(os.path.splitext(name)[1])
        if kind:
            yield ("" if name == "index.html" else name), os.path.join(PAGE, name), kind


def plotly() -> str:
    """The path of plotly.js in the Python package, which is not imported: that takes a second."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.path.exists(path := os.path.join(folder, PLOTLY)):
            return path
    raise missing("plotly")


# ---- serving ---------------------------------------------------------------------------------------------------------


def serve(folders: Sequence[str], host: str, port: int) -> None:
    """Serves until a signal ends it. `port` 0: any free port. Raises `ConfigError` if a package is missing,
    `InputError` if the port is not free."""
    for package in NEEDED:
        require(package)
    import uvicorn

    token = given_token()
    index = RunIndex(folders)
    listening = _listen(host, port)
    app = application(index, token=token or new_token(), host=host)
    shown = platform.node() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{listening.getsockname()[1]}/"
    answer(where if token else f"{where}#token={app.token}")  # not `say`, which would hide the token
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    try:
        with listening:
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        index.take_back()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        fix = "" if is_loopback(host) else "an address of this machine as --host, and "
        fix = f"give {fix}another --port; --port 0 chooses a free one"
        where = f"--host {host} --port {port}"
        raise InputError(f"the server cannot listen there: {error.strerror or error}", where=where, fix=fix) from None
