"""The command table. A command's own modules are imported when it runs, so `--help` stays instant.

Data goes to stdout, messages and progress to stderr. Errors are one line; `--debug` anywhere shows the traceback.
Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 stopped by the health check, 75 stopped early and resumable.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Annotated, NoReturn

import typer

from maskwright import __version__
from maskwright.cli import (  # noqa: F401 - each puts its commands into the table
    data,
    env,
    env_audit,
    env_build,
    env_import,
    env_init,
    env_smoke,
    models,
    monitor,
    ray,
    submit,
)
from maskwright.cli.options import app
from maskwright.core.console import say
from maskwright.core.errors import JobError, MaskwrightError, StoppedEarly
from maskwright.core.parent import PARENT, tell_reason
from maskwright.core.secrets import print_exception


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"maskwright {__version__}")
        raise typer.Exit()


# ---- running -------------------------------------------------------------------------------------------------------


def _stop(number: int, frame: FrameType | None) -> None:
    for further in (signal.SIGTERM, signal.SIGINT):  # a second one must not interrupt the clean-up after the first
        signal.signal(further, signal.SIG_IGN)
    what = f"by {signal.Signals(number).name}; nothing half-written is left, run the command again"
    raise StoppedEarly(what, reason="signal")


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; never raises."""
    debug = "--debug" in arguments
    beside = PARENT in os.environ and os.environ.get("LOCAL_RANK") != "0"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # asks a training run for a checkpoint; would else end a process
    try:
        app(args=[argument for argument in arguments if argument != "--debug"], prog_name="maskwright")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except MaskwrightError as error:
        tell_reason(error)
        if debug:
            raise
        reason = error.reason if isinstance(error, StoppedEarly) else None
        # Of the ranks that share this terminal, the first tells what became of others, which say it themselves.
        if not (beside and (isinstance(error, JobError) or reason in ("agreed", "lost"))):
            say(f"{'error' if reason is None else 'stopped'}: {error}")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        say(
            "error: out of memory. Fix: lower batch.micro_batch_rows, and raise batch.virtual_workers to keep the batch"
        )
        return 1
    except OSError as error:
        if debug:
            raise
        say(f"error: {error.filename or 'the system'}: {error.strerror or error}")
        return 1
    except Exception as error:
        if debug:
            raise
        say(f"error: {type(error).__name__}: {' '.join(str(error).split())}. This is a bug: --debug shows where")
        return 1
    return 0


def main() -> NoReturn:
    try:
        code = run(sys.argv[1:])
    except Exception as error:  # with --debug only
        print_exception(error)
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """Python takes a second to take torch apart, in which a signal or a thread could change the exit code: at once."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever reads has gone
            stream.flush()
    os._exit(code)
