"""Faults on purpose, for `maskwright drill` and the tests: failing file operations, and signals, stalls and clock jumps
at a named call of a command.

    python -m maskwright.drills.injection SPEC pretrain run.yaml --run run

SPEC is JSON: `{"call": "maskwright.training.checkpoint:_write", "number": 2, "do": "terminate"}`.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Hook = Callable[[int, str, str], None]
OPERATIONS = ("mkdir", "replace", "rename", "unlink", "rmdir", "fsync")


@contextmanager
def file_faults(hook: Hook) -> Iterator[None]:
    """Inside, `hook(number, operation, path)` is called before each operation that changes files: opening for writing
    and those of `OPERATIONS`; and in the middle of each write. The operation raises what the hook raises."""
    count = 0

    def note(operation: str, path: object) -> None:
        nonlocal count
        count += 1
        hook(count, operation, str(path))

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(file, mode, *arguments, **options)
        note("open", file)
        return _Writing(real_open(file, mode, *arguments, **options), note)

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            note(name, arguments[0])
            return real(*arguments, **options)

        return call

    real_open, before = builtins.open, {name: getattr(os, name) for name in OPERATIONS}
    calls = {name: noted(name) for name in OPERATIONS}
    builtins.open = opened
    for name, call in calls.items():
        setattr(os, name, call)
    try:
        yield
    finally:
        builtins.open = real_open
        for name, real in before.items():
            setattr(os, name, real)


class _Writing:
    """A file opened for writing. The hook is called when half of a write is done."""

    def __init__(self, file: Any, note: Callable[[str, object], None]) -> None:
        self._file, self._note = file, note

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._note("write", self._file.name)
        self._file.write(content[half:])
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def killed_at(number: int, action: Callable[[], None]) -> bool:
    """Runs `action` in a child that is killed with SIGKILL before its file operation `number`, or in the middle of it
    if it is a write. Returns whether it was killed; otherwise it was done before."""
    child = os.fork()
    if child == 0:
        with file_faults(lambda count, operation, path: _die() if count == number else None):
            action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"the child ended with {os.WEXITSTATUS(status)}")
    return False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


# ---- at a call of a command ----------------------------------------------------------------------------------------


def install(call: str, number: int, do: str, sign: str | None = None) -> None:
    """`call`: `module:function` or `module:Class.method`. At its call `number`, counted from 1:
    `terminate` (SIGTERM), `terminate_twice`, `kill`, `hang` (for an hour), `clock_back` (by an hour, from then on).
    `sign`: a file that is made just before, for whoever waits for the fault to begin."""
    module_name, _, dotted = call.partition(":")
    owner: Any = importlib.import_module(module_name)
    *path, name = dotted.split(".")
    for part in path:
        owner = getattr(owner, part)
    real, count = getattr(owner, name), 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            if sign:
                open(sign, "wb").close()
            ACTIONS[do]()
        return real(*arguments, **options)

    setattr(owner, name, wrapped)


def _signal(number: int, times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(0.05)  # until the main thread takes it


def _hang() -> None:
    end = time.monotonic() + 3600.0
    while time.monotonic() < end:
        time.sleep(0.05)


def _clock_back() -> None:
    real = time.time
    time.time = lambda: real() - 3600.0


ACTIONS: dict[str, Callable[[], None]] = {
    "terminate": lambda: _signal(signal.SIGTERM),
    "terminate_twice": lambda: _signal(signal.SIGTERM, times=2),
    "kill": lambda: _signal(signal.SIGKILL),
    "hang": _hang,
    "clock_back": _clock_back,
}


def main() -> None:
    install(**json.loads(sys.argv[1]))
    sys.argv = ["maskwright", *sys.argv[2:]]
    runpy.run_module("maskwright", run_name="__main__")


if __name__ == "__main__":
    main()
