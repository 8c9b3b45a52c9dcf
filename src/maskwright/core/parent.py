"""What a command and the process that started it tell each other, by variables of the environment.

The exit code 75 says only that the same command continues. A launcher has to know besides whether somebody asked for
that, and may not see the run directory. But it always has a process on the command's own machine, which reads one word
from a file there. Kubernetes (`terminationMessagePath`) and torchrun (`TORCHELASTIC_ERROR_FILE`) do the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import cast, get_args

from maskwright.core.errors import MaskwrightError, StoppedEarly, StopReason

REASON_FILE = "MASKWRIGHT_REASON_FILE"
"""Where a command that stops early writes its `StopReason`."""
PARENT = "MASKWRIGHT_PARENT"
"""The pid of `launch.local.supervise`."""
LISTENER = "MASKWRIGHT_LISTENER"
"""File descriptor of a socket that listens on MASTER_PORT already. `launch.local` gives it to rank 0, so that nobody
else can take the port in between."""
WISHES: tuple[StopReason, ...] = ("asked", "limit")
"""After these a launcher does not begin the run again."""
PR_SET_PDEATHSIG = 1


def tell_reason(error: MaskwrightError) -> None:
    """Replaces what a process that this one started may have said there."""
    if path := os.environ.get(REASON_FILE):
        with suppress(OSError), open(path, "w", encoding="ascii") as file:
            file.write(f"{error.reason if isinstance(error, StoppedEarly) else ''}\n")


def read_reason(path: str) -> StopReason:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return as_reason(file.read())
    except OSError:
        return ""


def as_reason(text: str) -> StopReason:
    """Empty for what is none."""
    word = text.strip()
    return cast(StopReason, word) if word in get_args(StopReason) else ""


def end_with_parent() -> None:
    """Called by a process that `supervise` may have started: from here on it does not outlive it."""
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(StoppedEarly.exit_code)
