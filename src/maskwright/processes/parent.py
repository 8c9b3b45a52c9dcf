"""What a command and the process that started it tell each other, by variables of the environment.

The exit code 75 says only that the same command continues. A launcher has to know besides whether somebody asked for
that, and may not see the run directory. But it always has a process on the command's own machine, which reads one word
from a file there. Kubernetes (`terminationMessagePath`) and torchrun (`TORCHELASTIC_ERROR_FILE`) do the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from typing import cast, get_args

from maskwright.core.errors import JobError, MaskwrightError, StoppedEarly, StopReason, as_record, from_record

REASON_FILE = "MASKWRIGHT_REASON_FILE"
"""Where a command that stops early writes its `StopReason`."""
ERROR_FILE = "MASKWRIGHT_ERROR_FILE"
"""Where a command that fails writes its error, for a Python program that raises it again."""
PARENT = "MASKWRIGHT_PARENT"
"""The pid of the process that a command ends with: `launch.local.supervise`, a comparison, or a Python program."""
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


def tell_error(error: MaskwrightError) -> None:
    """A job's error only says that a process has failed: what that one has said before stays."""
    path = os.environ.get(ERROR_FILE)
    if path and not (isinstance(error, JobError) and os.path.exists(path)):
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump(as_record(error), file)


def forget_error() -> None:
    """Called before processes start again."""
    if path := os.environ.get(ERROR_FILE):
        with suppress(FileNotFoundError):
            os.unlink(path)


def pass_error_on(path: str) -> None:
    """Tells as its own the error that a process which this one started has left in `path`. Of several, the first stays;
    but one that only heard of another's failure, and so has a job's error, may have ended before that one."""
    own = os.environ.get(ERROR_FILE)
    if own and os.path.exists(path) and isinstance(read_error(own), JobError | None):
        with suppress(OSError):
            shutil.copyfile(path, own)


def read_error(path: str) -> MaskwrightError | None:
    """None where a command ended without a word, as one that was killed does."""
    try:
        with open(path, encoding="utf-8") as file:
            return from_record(json.load(file))
    except (OSError, ValueError):
        return None


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
    """Called by a process that another of ours may have started: from here on it does not outlive that one. Linux alone
    can do that."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(StoppedEarly.exit_code)
