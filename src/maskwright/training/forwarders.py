"""The processes that send a run's numbers to the services of `logging.report_to`, one `maskwright forward` for each.

They read the run directory, and nothing of theirs comes back but a line of warning. So whatever a service does, the run
computes the same numbers in the same time. Only its last word waits a moment, for what is on its way.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from maskwright.config.pretraining import Reported
from maskwright.core.console import say, warn
from maskwright.core.errors import StoppedEarly
from maskwright.processes.child import python_module, signals_wait
from maskwright.processes.parent import ERROR_FILE, LISTENER, PARENT, REASON_FILE
from maskwright.run.directory import RunDirectory

WAIT_SECONDS = 30.0
"""After the run's last word, for what is still on its way."""
WAIT_AFTER_TROUBLE_SECONDS = 5.0
"""The same where the run stopped early or failed: a launcher may be about to send SIGKILL."""
NOT_THEIRS = {PARENT, ERROR_FILE, REASON_FILE, LISTENER}
"""Variables by which this process talks to whoever started it."""


class Forwarders:
    def __init__(self) -> None:
        self._directory: RunDirectory | None = None
        self._running: dict[str, subprocess.Popen[str]] = {}

    def begin(self, directory: RunDirectory, wanted: Sequence[Reported]) -> None:
        """Called when `status.json` says that the run goes on, for they end when it does not."""
        self._directory = directory
        environment = {name: value for name, value in os.environ.items() if name not in NOT_THEIRS}
        for name in dict.fromkeys(wanted):
            if name == "tensorboard":
                continue
            words = ["forward", directory.location, "--to", name, "--follow"]
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
            except OSError as error:  # no memory, no process left: nothing that the run could not do without
                warn(f"{name}: {error.strerror}; the run goes on without it")
                continue
            self._running[name] = process
            threading.Thread(target=self._listen, args=(process,), name=f"forward {name}", daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Passes on what a forwarder has to say."""
        assert process.stderr is not None and self._directory is not None
        for line in process.stderr:
            say(line.rstrip("\n"))
            self._directory.log(line.rstrip("\n"))

    def end(self, seconds: float) -> None:
        """Waits for them, but not for long, and not against a signal. Those that have more to do go on alone."""
        until = time.monotonic() + seconds
        try:
            while any(process.poll() is None for process in self._running.values()) and time.monotonic() < until:
                time.sleep(0.05)
        except (StoppedEarly, KeyboardInterrupt):
            pass
        for name, process in self._running.items():
            if process.poll() is None and self._directory:
                again = f"maskwright forward {self._directory.location} --to {name}"
                say(f"{name}: still sending, beside this command; should that be cut off, `{again}` sends the rest")


@contextmanager
def forwarding() -> Iterator[Forwarders]:
    forwarders = Forwarders()
    try:
        yield forwarders
    except BaseException:
        forwarders.end(WAIT_AFTER_TROUBLE_SECONDS)
        raise
    forwarders.end(WAIT_SECONDS)
