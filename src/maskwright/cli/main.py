"""The command table. A command's own modules are imported when it runs, so `--help` stays instant.

Data goes to stdout, messages and progress to stderr. Errors are one line; `--debug` anywhere shows the traceback too.
Exit codes: `core/errors.py`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from maskwright import __version__
from maskwright.cli import (  # noqa: F401 - each puts its commands into the table
    buckets,
    compare,
    convert,
    data,
    doctor,
    env,
    env_build,
    image,
    imports,
    models,
    monitor,
    plan,
    prove,
    recipes,
    report,
    submit,
    use,
    watch,
)
from maskwright.cli.options import JSON_VERSION, app
from maskwright.core.console import answer, escaped, print_exception, say
from maskwright.core.errors import InputError, JobError, MaskwrightError, StoppedEarly, as_record, of_the_system
from maskwright.core.extras import explain_import
from maskwright.core.library_errors import is_out_of_memory, is_panic
from maskwright.core.signals import ending, raise_on
from maskwright.processes.parent import PARENT, write_error

MORE_MEMORY = "end other programs, or use a machine with more memory"
LESS_MEMORY = {
    "pretrain": "lower batch.micro_batch_rows, and raise batch.virtual_workers to keep the batch",
    "finetune": "raise batch.virtual_workers, so that fewer of batch.examples are computed at once",
    "compare": "give a lower --workers, or --set batch.virtual_workers=N with a higher N, so that fewer of "
    "batch.examples are computed at once",
    "predict": "give a shorter --max-seq-len, or --input with fewer texts",
    "embed": "give a shorter --max-seq-len, or --input with fewer texts",
    "evaluate": "give a shorter --seq-len or a lower --max-rows, or --input with fewer texts",
}
"""Advice for less memory by command; other commands have none."""


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[  # `run` takes it out before, since it may stand anywhere
        bool, typer.Option("--debug", help="Show the traceback of an error too; it may stand behind any command.")
    ] = False,
) -> None:
    if version:
        answer(f"maskwright {__version__}")
        raise typer.Exit()


# ---- running -------------------------------------------------------------------------------------------------------


def stopped_by(number: int) -> StoppedEarly:
    what = f"by {signal.Signals(number).name}; nothing half-written is left, run the command again"
    return StoppedEarly(what, reason="signal")


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; never raises."""
    debug, as_json = "--debug" in arguments, "--json" in arguments
    beside = PARENT in os.environ and os.environ.get("LOCAL_RANK") != "0"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    raise_on(ending(), stopped_by)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # asks a training run for a checkpoint; would else end a process
    words = [_with_home(argument) for argument in arguments if argument != "--debug"]
    try:
        code = app(args=words, prog_name="maskwright", standalone_mode=False, obj=words)  # for what records them
        return code if isinstance(code, int) else 0
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except typer.Abort:
        say("aborted at the question")
        return 1
    except typer.TyperException as error:
        return _misused(error, words, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if debug:
            print_exception(error)
        return _explain(error, next(iter(words), ""), beside, as_json)


def _with_home(argument: str) -> str:
    """`--to=~/x` like `--to ~/x`, the only one of both that shells expand."""
    option, _, value = argument.partition("=")
    is_home = option.startswith("--") and value.startswith("~/")
    return f"{option}={os.path.expanduser(value)}" if is_home else argument


def _misused(error: Any, words: list[str], as_json: bool) -> int:
    """Shows the mistake in a command line: an unknown or missing option, or a wrong value. typer words other
    mistakes."""
    from maskwright.config.foreign_names import COMMANDS

    path, parameter = error.ctx.command_path if error.ctx else f"maskwright {words[0]}", getattr(error, "param", None)
    fix = COMMANDS.get(" ".join(words[:2]), f"see `{path} --help`")
    misused = InputError(error.format_message().rstrip("."), where=path, fix=fix)
    if hasattr(error, "possibilities"):
        from maskwright.cli.mistyped import unknown_options

        misused = unknown_options(error, words)
    elif parameter is not None:
        is_argument = parameter.param_type_name == "argument"
        name = parameter.metavar if is_argument else parameter.opts[0]
        kinds = () if error.message else parameter.type_descriptor.choices or ()  # a wrong value's message lists them
        value = f"{parameter.metavar or ' or '.join(kinds) or 'one of them'}: {parameter.help.rstrip('.')}"
        misused = InputError(
            f"{name} is missing", where=path, fix=f"give {value if is_argument else f'{name} {value}'}"
        )
        if error.message:
            details = error.__cause__.errors()[0] if hasattr(error.__cause__, "errors") else {}
            refused = details.get("ctx", {}).get("error")  # a `Refused` number
            fix = getattr(refused, "fix", None) or f"give {value}"
            misused = InputError(
                (error.message if refused is None else str(refused)).rstrip("."), where=f"{path} {name}", fix=fix
            )
    write_error(misused)
    _say("error", misused, as_json)
    return misused.exit_code


def _explain(error: BaseException, command: str, beside: bool, as_json: bool) -> int:
    """Shows an error in one line, and returns the exit code. Of the ranks that share this terminal, the first reports
    lost ranks, and the ones `beside` it do not."""
    error = explain_import(error) or error
    if isinstance(error, MaskwrightError):
        write_error(error)
        reason = error.reason if isinstance(error, StoppedEarly) else None
        if not (beside and (isinstance(error, JobError) or reason in ("agreed", "lost"))):
            _say("error" if reason is None else "stopped", error, as_json)
        return error.exit_code
    if is_out_of_memory(error):
        failed = MaskwrightError("out of memory", fix=LESS_MEMORY.get(command, MORE_MEMORY))
    elif is_panic(error):
        fix = "find the text on which one of the tokenizer's regular expressions fails, or use another tokenizer"
        failed = MaskwrightError(f"the tokenizers library crashed: {error}", fix=fix)
    elif isinstance(error, OSError):
        failed = of_the_system(error)
    else:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}. This is a bug: --debug shows where"
        failed = MaskwrightError(what)
    write_error(failed)
    _say("error", failed, as_json)
    return failed.exit_code


def _say(word: str, error: MaskwrightError, as_json: bool) -> None:
    """Shows the last line on stderr; for a program, one JSON document."""
    record = {"version": JSON_VERSION, "error": as_record(error)}
    say(escaped(json.dumps(record, ensure_ascii=False)) if as_json else f"{word}: {error}")


def main() -> NoReturn:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by 2>&-: the next file that is opened would get what is printed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    end(run(sys.argv[1:]))


def end(code: int) -> NoReturn:
    """Exits at once, since Python needs a second to unload torch, in which the exit code could change."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader has gone
            stream.flush()
    os._exit(code)
