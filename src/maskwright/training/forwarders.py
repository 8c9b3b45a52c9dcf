"""The processes that send a run's numbers to the services of `logging.report_to`, one `maskwright sync` for each.

They read the run directory, and only lines of warning come back from them. So no service affects the run's numbers or
speed. Only the run's end waits a moment, for lines that are still being sent.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from maskwright.config.pretraining import Reported
from maskwright.core.console import say, typed, warn
from maskwright.core.errors import StoppedEarly
from maskwright.processes.child import python_module, signals_wait
from maskwright.processes.parent import ERROR_FILE, LISTENER, PARENT
from maskwright.run.directory import RunDirectory

WAIT_SECONDS = 30.0
"""Wait at the run's end for lines that are still being sent."""
WAIT_AFTER_TROUBLE_SECONDS = 5.0
"""Wait after an early stop or a failure, when a launcher may be about to send SIGKILL."""
NOT_THEIRS = {PARENT, ERROR_FILE, LISTENER}
"""Variables by which this process talks to its parent."""


class Forwarders:
    def __init__(self) -> None:
        self._directory: RunDirectory | None = None
        self._running: dict[str, subprocess.Popen[str]] = {}

    def begin(self, directory: RunDirectory, services: Sequence[Reported]) -> None:
        """Starts the forwarders. Called when `status.json` shows that the run is on, since they end otherwise."""
        self._directory = directory
        environment = {name: value for name, value in os.environ.items() if name not in NOT_THEIRS}
        for name in dict.fromkeys(services):
            if name == "tensorboard":
                continue
            words = ["sync", directory.location, "--to", name, "--follow"]
            try:
                with signals_wait():
                    process = subprocess.Popen(
                        python_module("maskwright", *words),
                        env=environment | {"OMP_NUM_THREADS": "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        text=True,
                        errors="replace",
                        start_new_session=True,  # a Ctrl-C in the terminal stops the run, and lets them finish
                    )
            except OSError as error:  # no memory, no process left: the run can do without
                warn(f"{name}: {error.strerror}; the run continues without it")
                continue
            self._running[name] = process
            threading.Thread(target=self._listen, args=(process,), name=f"forward {name}", daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Shows and logs the lines that a forwarder prints."""
        assert process.stderr is not None and self._directory is not None
        for line in process.stderr:
            say(line.rstrip("\n"))
            self._directory.log(line.rstrip("\n"))

    def end(self, seconds: float) -> None:
        """Waits for the forwarders, but not for long, and not after a signal. Others continue alone."""
        until = time.monotonic() + seconds
        try:
            while any(process.poll() is None for process in self._running.values()) and time.monotonic() < until:
                time.sleep(0.05)
        except (StoppedEarly, KeyboardInterrupt):
            pass
        for name, process in self._running.items():
            if process.poll() is None and self._directory:
                again = typed(["sync", self._directory.location, "--to", name])
                say(f"{name}: still sending in the background; if that is cut off, `{again}` sends the rest")


@contextmanager
def forwarding() -> Iterator[Forwarders]:
    forwarders = Forwarders()
    try:
        yield forwarders
    except BaseException:
        forwarders.end(WAIT_AFTER_TROUBLE_SECONDS)
        raise
    forwarders.end(WAIT_SECONDS)
