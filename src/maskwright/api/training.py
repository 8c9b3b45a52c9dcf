"""Training from Python: the command in a process of its own, followed through the files of its run directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import yaml
from pydantic import Field

from maskwright.api.given import Location, checked, location, nested, override
from maskwright.api.listening import Listener, OnLog, OnSave
from maskwright.api.runs import Run
from maskwright.config.pretraining import build_config, read_config, read_values, replace_exclusive
from maskwright.config.recipes import Kind
from maskwright.config.retrieval import build_task_config, read_task_config
from maskwright.config.settings import Count, require_no_secret
from maskwright.core.console import answer
from maskwright.core.errors import JobError
from maskwright.processes.child import python_module, signals_wait
from maskwright.processes.parent import ERROR_FILE, PARENT, read_error

Config = str | os.PathLike[str] | Mapping[Any, Any]
"""Location of a YAML, the name of a recipe, or the YAML's content: `{"data": {"store": …}, …}`, or with dotted keys
`{"data.store": …}`."""
LISTEN_SECONDS = 0.2
BEGIN = "start with `data:`"
BUILD = {"pretrain": build_config, "finetune": build_task_config}
READ = {"pretrain": read_config, "finetune": read_task_config}


@checked
def pretrain(
    config: Config,
    run: Location,
    *,
    overrides: Mapping[str, Any] | None = None,
    begin_from: Location | None = None,
    fresh_optimizer: bool = False,
    stop_after_hours: Annotated[float, Field(ge=0.0)] | None = None,
    stop_after_steps: Count | None = None,
    processes: Count | None = None,
    on_log: OnLog | None = None,
    on_evaluate: OnLog | None = None,
    on_save: OnSave | None = None,
) -> Run:
    """Trains a masked language model in the folder `run`, or continues the run there exactly, and waits for its end.

    `overrides`: dotted keys over the configuration's, such as `{"schedule.steps": 100}`. `begin_from`: RUN or RUN@STEP,
    whose checkpoint a new run begins with. `processes`: on this machine; default: one for each GPU.

    `on_log` and `on_evaluate` are called with a line of `Run.metrics` soon after the run has written it, and `on_save`
    with the step and the folder of a checkpoint. They run in the caller's thread, and the training does not wait
    for them. If one raises, you get a warning, and the run continues.

    Raises `InputError` (its kinds name the file or key), `HealthError`, and `StoppedEarly` if a limit or a stop request
    ended this start; the same call continues. Interrupted from the keyboard, it first lets the run save; interrupted
    again, it ends the run at once. The run outlives neither this program nor the calling thread.
    """
    options = [f"--from={location(begin_from)}"] if begin_from else []
    options += ["--fresh-optimizer"] * fresh_optimizer
    options += _limits(stop_after_hours, stop_after_steps, processes)
    return _train("pretrain", config, run, overrides or {}, options, (on_log, on_evaluate, on_save))


@checked
def finetune(
    config: Config,
    run: Location,
    *,
    overrides: Mapping[str, Any] | None = None,
    stop_after_hours: Annotated[float, Field(ge=0.0)] | None = None,
    stop_after_steps: Count | None = None,
    processes: Count | None = None,
    on_log: OnLog | None = None,
    on_evaluate: OnLog | None = None,
    on_save: OnSave | None = None,
) -> Run:
    """Trains a model on labelled examples and judges it; `Run.results` holds its scores. `pretrain`
    describes the other parameters and the errors."""
    options = _limits(stop_after_hours, stop_after_steps, processes)
    return _train("finetune", config, run, overrides or {}, options, (on_log, on_evaluate, on_save))


def _limits(hours: float | None, steps: int | None, processes: int | None) -> list[str]:
    limits = {"--stop-after-hours": hours, "--stop-after-steps": steps, "--processes": processes}
    return [f"{option}={value}" for option, value in limits.items() if value is not None]


def _train(
    verb: Kind,
    config: Config,
    run: Location,
    overrides: Mapping[str, Any],
    options: Sequence[str],
    calls: tuple[OnLog | None, OnLog | None, OnSave | None],
) -> Run:
    place = location(run)
    listener = Listener(place, *calls)
    with tempfile.TemporaryDirectory(prefix="maskwright-") as folder:
        config_path = _checked(verb, config, overrides, folder)
        error_file = os.path.join(folder, "error.json")
        with _started([verb, config_path, f"--run={place}", *options], error_file) as process:
            while process.poll() is None:
                listener.hear()
                time.sleep(LISTEN_SECONDS)
        listener.hear()
        if process.returncode == 0:
            return Run(place)
        error = read_error(error_file)
    if error is None:
        what = f"the training process ended with {process.returncode} and gave no reason"
        fix = "read its log.txt; the same call continues a run that has saved"
        error = JobError(what, max(process.returncode, 1), where=place, fix=fix)
    raise error


def _checked(verb: Kind, config: Config, overrides: Mapping[str, Any], folder: str) -> str:
    """Location of the YAML to train with, refused here if it has an error. Overrides are written into it, since a
    command line is visible to all users."""
    if isinstance(config, str | os.PathLike) and not overrides:
        place = os.fspath(config)
        READ[verb](place)
        return place if not place.startswith("-") else f"./{place}"
    if isinstance(config, Mapping):
        values, where = nested(config), "config"
    else:
        values, where, _ = read_values(location(config), None, BEGIN, verb)
    blamed = override(values, overrides)
    replace_exclusive(values, blamed)
    require_no_secret(values, where, blamed)
    BUILD[verb](values, where, blamed)
    path = os.path.join(folder, "config.yaml")
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(values, file, sort_keys=False, allow_unicode=True)
    return path


@contextlib.contextmanager
def _started(words: Sequence[str], error_file: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the command, with its output on this program's stderr. On an exception, it is stopped as by Ctrl-C, and this
    waits until it has saved."""
    environment = {**os.environ, ERROR_FILE: error_file, PARENT: str(os.getpid())}
    with signals_wait():
        process = subprocess.Popen(
            python_module("maskwright", *words),
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C in the terminal is for this program to pass on
        )
    # A thread, since a full pipe would stop the run, and sys.stderr, which in a notebook is the cell's.
    reader = threading.Thread(target=_pass_on, args=(process,), daemon=True)
    reader.start()
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait()
        except KeyboardInterrupt:  # a second Ctrl-C, which means not to wait for the save
            process.kill()
            process.wait()
        raise
    finally:
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def _pass_on(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        with contextlib.suppress(OSError, ValueError):  # closed, but reading continues, since the run would wait
            answer(line, sys.stderr, end="")
