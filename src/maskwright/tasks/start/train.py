"""A start of a training run, new or continued, in every rank: from the prepared run to the last status."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from maskwright.config.pretraining import RunConfig
from maskwright.config.recipes import Kind, find_config
from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import (
    CheckpointError,
    ConfigError,
    EndedAsAsked,
    HealthError,
    InputError,
    MaskwrightError,
    StoppedEarly,
)
from maskwright.core.lease import leased
from maskwright.core.secrets import redact
from maskwright.engines.base import TrainState
from maskwright.engines.choose import choose_device, require_engine
from maskwright.engines.processes import together
from maskwright.machine.devices import here
from maskwright.machine.hardware import usable_cores
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.run.record import RunRecord
from maskwright.run.starts import StartsFile
from maskwright.tasks.start.capacity import DTYPES, compiled_layers, engine_config, exact_threads, require_room
from maskwright.tasks.start.changes import noted, require_same_run
from maskwright.tasks.start.data_card import write_card
from maskwright.tasks.start.engine import BEGIN, RESTORE, environment, make_job, start_engine, start_record
from maskwright.tasks.start.follow import follow
from maskwright.tasks.start.opened import RunStart
from maskwright.tasks.start.prepared import Prepared
from maskwright.training import checkpoint, loop
from maskwright.training.beats import Beats
from maskwright.training.job import Job
from maskwright.training.loop import restore, update_status
from maskwright.training.saver import Saver
from maskwright.training.stop import StopRequest, out_of_time, stop_on_signals


def train(start: RunStart, ready: Prepared, *, config_file: str | None = None) -> None:
    """Begins or continues the run.

    Raises `StoppedEarly` (75), `EndedAsAsked` (76), `HealthError` (3) or kinds of `InputError` (2)."""
    if start.processes.rank:
        return follow(start, ready)
    assert start.starts_file is not None
    config, directory, before = ready.config, start.directory, start.before
    if before is None:
        directory.require_fresh()
        ready.verify()
        # Before the folder is made, so that a bad model leaves nothing behind.
        beginning = ready.starting_state()
    require_room(ready, directory)
    threads = exact_threads(config, before)
    start.agree()
    start.processes.broadcast(json.dumps(_for_all_ranks(ready, threads)).encode())
    engine = start_engine(ready, before, threads)
    record = replace(
        ready.record(start.config, engine.dtype_name, before),
        threads=threads,
        compiled=compiled_layers(engine, config.engine, before),
        by_mkl=before.by_mkl if before and before.by_mkl is not None else engine.by_mkl,
        changes=before.changes if before else (),
    )
    start.agree()  # before the folder is made
    with (
        stop_on_signals(start.request) as stop,
        leased(directory.location, stop=lambda: stop.requested) as lease,
        start.starts_file.holding(start.starts, lease),
        Beats(directory, 0, start.processes.world_size, start.name) as beats,
    ):
        if directory.exists() != (before is not None):
            raise InputError(
                "another start of the run began meanwhile",
                where=directory.location,
                fix="start the same command again",
            )
        if start.starts.starts == 1:
            directory.take_request()  # it was meant for an earlier start
        stop.take_request(directory)  # it came while the run was about to restart
        saver = Saver(directory, config.checkpoint, start.copies, lease)
        job = make_job(ready, directory, engine, record, saver)
        stop.when_grace_ends = partial(_grace_ended, job, stop)
        loaded = None if before is None else _load(job, ready, start)
        if before is not None and (loaded is None or _base_of(record) != _base_of(before)):
            _require_same_beginning(ready, before)
        if before is not None and loaded is None:
            beginning, config_file = ready.starting_state(), None
        job.beats = beats.begin(engine, job.status.attempt)
        start.agree(last=True)
        if loaded:
            _continue(job, *loaded)
            del loaded  # a second copy of the state, for as long as the run
        else:
            _begin(job, ready, beginning, config_file)
            del beginning
        update_status(job, "starting")
        start.forwarders.begin(directory, config.logging.report_to)
        write_card(directory, ready, job)
        _say_first_lines(job, ready)
        saver.copy_newest(job.objective.best_step)
        _run(job, stop, ready)


def check(start: RunStart, ready: Prepared) -> None:
    """Raises for a dry run what `train` would raise before it writes anything. Only `train` checks the checksums, uses
    the network, and needs the device. Without the device, the room for the run is not checked either."""
    before, directory = start.before, start.directory
    if before is None:
        directory.require_fresh()
        if ready.begins_from is not None:
            ready.starting_state()
    else:
        dtype = DTYPES.get(ready.config.engine.dtype, before.dtype)
        now = ready.record(start.config, dtype, before)
        require_same_run(before, now, directory)
    try:
        device = choose_device(ready.config.engine)
    except ConfigError:
        return
    decided = engine_config(ready.config, before, None)
    require_engine(ready.config.model_copy(update={"engine": decided}), device, ready.flops)
    require_room(ready, directory)


def _for_all_ranks(ready: Prepared, threads: int | None) -> dict[str, Any]:
    """Rank 0's message to the others: what they must have prepared too, and what it decides for them."""
    train_text, held_out = ready.texts
    return {
        "model": asdict(ready.model),
        "text": train_text.fingerprint,
        "held_out": {name: text.fingerprint for name, text in held_out.items()},
        "threads": threads,
    }


def _say_first_lines(job: Job, ready: Prepared) -> None:
    engine = job.engine
    job.directory.append_history("started", job.step, **start_record(job))
    say(ready.describe())
    for warning in ready.warnings():
        warn(warning)
    place = here(
        engine.device,
        job.ceiling.flops_per_second,
        low_precision=engine.dtype_name != "float32",
        processes=engine.dp_degree,
        threads=getattr(engine, "threads", None) or -(-usable_cores() // engine.dp_degree),
    )
    expected_time = ready.time_here(place, job.step)
    speed = f"{job.ceiling.flops_per_second / 1e9:,.0f} GFLOP/s measured in plain matrix multiplication"
    say(f"engine: {engine.description}; {speed}{f'; {expected_time}' if expected_time else ''}")
    job.directory.log(f"attempt {job.status.attempt}: {engine.description}")


def _grace_ended(job: Job, stop: StopRequest) -> None:
    """Runs in a thread, while the main thread is in a step or a compiler: the launcher's SIGKILL is near."""
    try:
        while job.saver and job.saver.busy:
            time.sleep(0.05)
        saved = checkpoint.whole_steps(job.directory.checkpoints)
        again = f"the same command continues from step {saved[-1]:,}" if saved else "the same command starts again"
        error = out_of_time(f"the grace period ended before the step did; {again}", is_final=stop.is_final)
        update_status(job, "stopped", error.what, error.exit_code, error.reason)
        job.beats.end(error.exit_code, error.what, error.reason)
        if stop.is_final:
            StartsFile(job.directory).remove()  # not in parallel with the copies, whose store may take a minute
    finally:
        os._exit((EndedAsAsked if stop.is_final else StoppedEarly).exit_code)


def _run(job: Job, stop: StopRequest, ready: Prepared) -> None:
    try:
        with together(job.engine.processes):
            loop.train(job, stop)
            ready.finish(job)
        if job.saver:
            job.saver.copy_ended(job.step)
    except StoppedEarly as error:
        update_status(job, "stopped", str(error), error.exit_code, error.reason)
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, MaskwrightError) else 1
        if not (job.saver and job.saver.lost):  # otherwise the folder belongs to another process
            update_status(job, "failed", str(error) or type(error).__name__, code)
            job.directory.log(f"failed: {error}")
        if isinstance(error, HealthError) and error.step is not None:
            _keep_batch(job, ready, error.step, error)
        raise
    stopped = job.objective.best.settled and job.step < job.steps
    why = f"no longer improving: step {job.objective.best_step:,} has the best evaluation" if stopped else ""
    update_status(job, "done", why or "trained to the last step", 0)
    if stopped:
        say(f"step {job.step:,}: {why}")
    say(f"done: {job.directory.location}")


def _keep_batch(job: Job, ready: Prepared, step: int, error: HealthError) -> None:
    """Keeps the batch of a failed step. An error here must not hide the first one."""
    saved = [saved_step for saved_step in checkpoint.whole_steps(job.directory.checkpoints) if saved_step <= step]
    details = {
        "error": str(error),
        "learning_rate": job.config.learning_rate_at(step),
        "checkpoint": step_folder(saved[-1]) if saved else None,
        "store": ready.texts[0].location,
    }
    try:
        folder = ready.keep_batch(job, step, details)
        say(f"the batch and the positions of its text are in {folder}")
    except Exception as failure:
        warn(f"the batch of step {step} cannot be kept: {failure}")


def _base_of(record: RunRecord) -> Any:
    return record.keys["model.init_from"]


def _require_same_beginning(ready: Prepared, before: RunRecord) -> None:
    """Raises `CheckpointError` if a run that was killed before its first save, or whose base has moved, would begin
    with other weights."""
    now, then = ready.began_from(), before.began_from
    if now is None or then is None or now.sha256s == then.sha256s:
        return
    what, fix = "does not have the weights with which the run began", "restore them, or give --run a new folder"
    raise CheckpointError(what, where=then.named(), fix=fix)


def _begin(job: Job, ready: Prepared, state: TrainState, config_file: str | None) -> None:
    directory = job.directory
    job.engine.processes.broadcast(BEGIN)
    job.engine.write(state)
    ready.write_tokenizer(directory.path("tokenizer"))
    copy = directory.path("config.yaml")
    kind: Kind = "pretrain" if isinstance(ready.config, RunConfig) else "finetune"
    source = config_file and find_config(config_file, kind)
    if source and not (os.path.exists(copy) and os.path.samefile(source, copy)):
        with storage.open_binary(source) as original, storage.atomic_writer(copy) as kept_copy:
            kept_copy.write(redact(original.read().decode()).encode())
    storage.write_json(directory.path("environment.json"), environment())
    assert job.record is not None
    directory.write_record(job.record)  # last: with it, the folder is a run


def _add_what_copies_lack(ready: Prepared, directory: RunDirectory) -> None:
    """Adds the files that a new machine lacks after it has fetched the run."""
    if not os.path.exists(directory.path("tokenizer")):
        ready.write_tokenizer(directory.path("tokenizer"))
    if not os.path.exists(directory.path("environment.json")):
        storage.write_json(directory.path("environment.json"), environment())


def _load(job: Job, ready: Prepared, start: RunStart) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest checkpoint of the run that is continued; None if it was stopped before its first."""
    directory, before, now = job.directory, start.before, job.record
    assert before is not None and now is not None
    changes = require_same_run(before, now, directory)
    _add_what_copies_lack(ready, directory)
    if status := directory.read_status():
        job.status.attempt, job.status.saved = status.attempt + 1, status.saved
        job.status.skipped_updates = status.skipped_updates
    loaded = checkpoint.load_newest(directory.checkpoints, set_aside=True)
    step = loaded[0].step if loaded else 0
    for change in changes.values():
        say(f"changed since the last start: {change}")
        directory.log(f"changed: {change}")
    job.record = now = replace(now, changes=(*before.changes, *noted(changes, step)))
    if now != before:
        directory.write_record(now)
    if loaded is None:
        say("the run was stopped before its first checkpoint: starting again")
        directory.drop_metrics_after(-1)
    job.status.saved = loaded is not None
    return loaded


def _continue(job: Job, state: TrainState, record: dict[str, Any]) -> None:
    job.engine.processes.broadcast(RESTORE)
    again = restore(job, state, record)
    if job.ended:
        say("already trained to its end")
        return
    say(f"continuing at step {state.step:,}" + (f" ({again} log lines are repeated)" if again else ""))
