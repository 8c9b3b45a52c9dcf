"""Processes that a command starts and must not leave behind, such as other commands of maskwright."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from maskwright.core.console import say, typed
from maskwright.core.errors import JobError, stopped
from maskwright.processes.parent import PARENT

LAST_BYTES = 64 << 10
"""Bytes at the end of a log in which its last line is searched."""


@dataclass(frozen=True)
class FinetuneCommand:
    """`maskwright finetune` as a value."""

    config: str
    run: str
    overrides: tuple[str, ...]
    log: str

    def words(self) -> list[str]:
        keys = [word for text in self.overrides for word in ("--set", text)]
        return ["finetune", self.config, "--run", self.run, *keys]


def python_module(module: str, *arguments: str) -> list[str]:
    """Words that start a module in a Python of its own.

    -P is for a working directory with somebody else's data or model. Without it, Python imports from there first, and
    would run a `typer.py` in it (https://docs.python.org/3/using/cmdline.html).
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def run(words: Sequence[str]) -> int:
    """Runs `maskwright WORDS` with its output on the screen. Returns its exit code, as a shell gives it.

    Any exception here, such as a signal's, first stops the command and waits for it. So a run and Terraform's state are
    saved, and machines that the command created are deleted.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals_wait():
            process = subprocess.Popen(python_module("maskwright", *words))
        code = process.wait()
    except BaseException:
        if process is not None:
            process.terminate()
            process.wait()
        raise
    return code if code >= 0 else 128 - code


@dataclass(frozen=True)
class Step:
    command: str
    """As a user would type it."""
    exit_code: int | None = None
    """None before its end, and if it was stopped."""
    seconds: float | None = None
    """None before it begins."""


class CommandSequence:
    """Runs one command after another, like `run`; `ran` has those that have started."""

    def __init__(self) -> None:
        self.ran: list[Step] = []

    def run(self, words: Sequence[str]) -> int:
        say(f"$ {typed(words)}")
        began, code = time.monotonic(), None
        try:
            code = run(words)
            return code
        finally:
            self.ran.append(Step(typed(words), code, round(time.monotonic() - began, 3)))


def require(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> None:
    """Runs a command. Raises `StoppedEarly`, or `JobError` with the exit code, unless that is 0."""
    code = run(words)
    if kind := stopped(code):
        raise kind(f"`{typed(words)}` stopped early")
    if code:
        raise JobError(f"exit {code}", code, where=typed(words), fix="read its output")


def run_side_by_side(commands: Sequence[FinetuneCommand], at_once: int) -> Generator[tuple[int, int], None, None]:
    """Runs commands on this machine, `at_once` at a time. Yields (index in `commands`, exit code) as they end. No
    command outlives this process, even if it is killed.

    Closing the iterator stops the running commands and waits for them.
    """
    waiting, running = list(enumerate(commands)), dict[int, subprocess.Popen[bytes]]()
    environment = {**os.environ, PARENT: str(os.getpid())}
    if at_once > 1:
        # Threads that spin while they wait occupy the cores of other commands. With two trainings at once on two cores,
        # the commands of docs/search.md took 244 s and 467 CPU-seconds; sleeping threads take 49 and 77.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, command = waiting.pop(0)
                with signals_wait(), open(command.log, "ab") as file:
                    running[number] = subprocess.Popen(
                        python_module("maskwright", *command.words()),
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,  # this process passes on a Ctrl-C in the terminal
                    )
            ended = [number for number, process in running.items() if process.poll() is not None]
            for number in ended:
                code = running.pop(number).returncode
                yield number, code if code >= 0 else 128 - code
            if not ended:
                time.sleep(0.05)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def last_words(log: str) -> str:
    """The last line that a run has printed; its log may be long."""
    lines: list[str] = []
    with suppress(FileNotFoundError), open(log, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return (lines or ["it printed nothing"])[-1]


@contextmanager
def signals_wait() -> Iterator[None]:
    """Postpones signals to the end of the context, since an exception inside `Popen` would lose the new process."""
    arrived: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    signals: list[int] = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if in_main else []
    before = {number: handler for number in signals if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in arrived:
        signal.raise_signal(number)
