"""Fault injection: signals, stalls and clock jumps at a named call of a command.

injected({"call": "maskwright.training.checkpoint:_write", "number": 2, "do": "terminate"}, "pretrain", "run.yaml")
"""

import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def install(call: str, number: int, do: str, sign: str | None = None) -> None:
    """Injects a fault. `call`: `module:function` or `module:Class.method`. At its call `number`, counted from 1:
    `terminate` (SIGTERM), `terminate_twice`, `kill`, `hang` (for an hour), `clock_back` (by an hour, from then on), or
    `nothing`.
    `sign`: a file that is created just before, for a process that waits for the fault."""
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
    "nothing": lambda: None,
}


def injected(fault: dict[str, Any], *arguments: str) -> list[str]:
    """The words of `maskwright *arguments`, in a process in which `install(**fault)` has been called."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import injection; injection.main()"
    return [sys.executable, "-c", code, json.dumps(fault), *arguments]


def main() -> None:
    install(**json.loads(sys.argv[1]))
    sys.argv = ["maskwright", *sys.argv[2:]]
    runpy.run_module("maskwright", run_name="__main__")
