"""Messages between a command and the process that started it, by variables of the environment.

The exit code 75 says only that the same command continues. A launcher must also know whether an operator asked for the
stop, and may not see the run directory. But it has a process on the command's machine, which reads one word from a file
there, as Kubernetes (`terminationMessagePath`) and torchrun (`TORCHELASTIC_ERROR_FILE`) do.
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
"""File to which a command that stops early writes its `StopReason`."""
ERROR_FILE = "MASKWRIGHT_ERROR_FILE"
"""File to which a command that fails writes its error, for a Python program that raises it again."""
PARENT = "MASKWRIGHT_PARENT"
"""The pid of the process with which a command ends: `launch.local.supervise`, a comparison, or a Python program."""
LISTENER = "MASKWRIGHT_LISTENER"
"""File descriptor of a socket that already listens on MASTER_PORT. `launch.local` passes it to rank 0, so that no other
program can take the port in between."""
REQUESTED: tuple[StopReason, ...] = ("asked", "limit")
"""Reasons after which a launcher does not restart the run."""
PR_SET_PDEATHSIG = 1


def write_reason(error: MaskwrightError) -> None:
    """Writes the reason, in place of one that a child process may have written there."""
    if path := os.environ.get(REASON_FILE):
        with suppress(OSError), open(path, "w", encoding="ascii") as file:
            file.write(f"{error.reason if isinstance(error, StoppedEarly) else ''}\n")


def write_error(error: MaskwrightError) -> None:
    """Writes the error. A job's error only says that a process failed, so it does not replace that process's own."""
    path = os.environ.get(ERROR_FILE)
    if path and not (isinstance(error, JobError) and os.path.exists(path)):
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump(as_record(error), file)


def delete_error() -> None:
    """Deletes the error; called before processes start again."""
    if path := os.environ.get(ERROR_FILE):
        with suppress(FileNotFoundError):
            os.unlink(path)


def pass_error_on(path: str) -> None:
    """Passes on the error that a child process has left in `path`. The first of several stays, unless it is a job's
    error: a process that only noticed another's failure may have ended first."""
    own_path = os.environ.get(ERROR_FILE)
    if own_path and os.path.exists(path) and isinstance(read_error(own_path), JobError | None):
        with suppress(OSError):
            shutil.copyfile(path, own_path)


def read_error(path: str) -> MaskwrightError | None:
    """The error that a command left; None if it ended without one, for example because it was killed."""
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
    """The text as a `StopReason`; empty for any other text."""
    word = text.strip()
    return cast(StopReason, word) if word in get_args(StopReason) else ""


def end_with_parent() -> None:
    """Makes this process end with the parent that `PARENT` names, if any; only Linux can do that."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(StoppedEarly.exit_code)
