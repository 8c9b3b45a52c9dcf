"""Messages between a command and the process that started it, by variables of the environment.

A failing command leaves its error in a file that its parent names, since an exit code has no words, as torchrun's
processes do (`TORCHELASTIC_ERROR_FILE`).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from contextlib import suppress

from maskwright.core.errors import JobError, MaskwrightError, StoppedEarly, as_record, from_record

ERROR_FILE = "MASKWRIGHT_ERROR_FILE"
"""File to which a command that fails writes its error, for a Python program that raises it again."""
PARENT = "MASKWRIGHT_PARENT"
"""The pid of the process with which a command ends: `launch.local.supervise`, a comparison, or a Python program."""
LISTENER = "MASKWRIGHT_LISTENER"
"""File descriptor of a socket that already listens on MASTER_PORT. `launch.local` passes it to rank 0, so that no other
program can take the port in between."""
PR_SET_PDEATHSIG = 1


def write_error(error: MaskwrightError) -> None:
    """Writes the error. An error by a process of this job stays if it has the same code, or if the new one only reports
    that a process failed, since the process reports the cause."""
    path = os.environ.get(ERROR_FILE)
    before = read_error(path) if path else None
    if path and not (before and (isinstance(error, JobError) or before.exit_code == error.exit_code)):
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


def end_with_parent() -> None:
    """Makes this process end with the parent that `PARENT` names, if any; only Linux can do that."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(StoppedEarly.exit_code)
