"""A start of a training run, new or continued: what rank 0 does, from the first check to the last status."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from maskwright.config.changes import grows, refuse_changes, require_kind
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.recipes import Kind, find_config
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import (
    ConfigError,
    HealthError,
    InputError,
    MaskwrightError,
    StoppedEarly,
)
from maskwright.core.secrets import redact
from maskwright.engines.base import TrainState
from maskwright.engines.choose import choose_device, find_processes, require_engine
from maskwright.engines.processes import Agree, Processes, starting, together
from maskwright.run.directory import FORMAT, RunDirectory, step_folder
from maskwright.run.lease import leased
from maskwright.tasks.start.capacity import DTYPES, compiled_layers, engine_config, exact_threads, require_room
from maskwright.tasks.start.changes import history, require_same_run
from maskwright.tasks.start.data_card import write_card
from maskwright.tasks.start.engine import (
    BEGIN,
    RESTORE,
    environment,
    for_all_ranks,
    make_job,
    start_engine,
    start_record,
)
from maskwright.tasks.start.follow import follow
from maskwright.tasks.start.prepared import Prepare, Prepared, TimeHere
from maskwright.training import checkpoint
from maskwright.training.beats import Beats
from maskwright.training.copies import Copies
from maskwright.training.forwarders import Forwarders, forwarding
from maskwright.training.job import Job
from maskwright.training.loop import restore, save, train, update_status
from maskwright.training.saver import Saver
from maskwright.training.stop import StopRequest, out_of_time, stop_on_signals


def train_run(
    config: RunConfig | FinetuneConfig,
    run: str,
    prepare: Prepare,
    *,
    config_file: str | None = None,
    stop_request: StopRequest | None = None,
    time_here: TimeHere | None = None,
) -> None:
    """Trains, or continues the run in `run`. `stop_request` may carry limits of this start. `time_here` projects how
    long the run will take, for its first lines.

    Raises `StoppedEarly` (75), `HealthError` (3) or kinds of `InputError` (2)."""
    processes = find_processes(config.engine)
    request = stop_request or StopRequest()
    request.grace_seconds = config.checkpoint.grace_seconds
    with forwarding() as forwarders, starting(processes) as agree:
        if processes.rank == 0:
            config.logging.require_packages()
            return _lead(config, run, prepare, config_file, request, processes, agree, forwarders, time_here)
        return follow(config, run, prepare, request, processes, agree)


def _lead(
    given: RunConfig | FinetuneConfig,
    run: str,
    prepare: Prepare,
    config_file: str | None,
    request: StopRequest,
    processes: Processes,
    agree: Agree,
    forwarders: Forwarders,
    time_here: TimeHere | None,
) -> None:
    """What rank 0 does."""
    directory = RunDirectory(run)
    copies = _fetched(given, directory)
    before = _record_before(given, directory)
    ready = prepare(before)
    config = ready.config
    if before is None:
        directory.require_fresh()
        ready.verify()
        # Before the folder is made, so that a bad model leaves nothing behind.
        beginning = ready.starting_state()
    base = _base_weights(ready, before)
    require_room(ready, directory)
    threads = exact_threads(config, before)
    shared = {**for_all_ranks(ready, given, request, before), "threads": threads}
    agree()
    processes.broadcast(json.dumps(shared).encode())
    engine = start_engine(ready, before, threads)
    record = _record(ready, given, dtype=engine.dtype_name) | base
    record |= {"threads": threads, "compiled": compiled_layers(engine, config.engine, before)}
    agree()  # before the folder is made
    with (
        stop_on_signals(request) as stop,
        leased(directory.location, stop=lambda: stop.requested) as lease,
        Beats(directory, 0, processes.world_size, shared["start"]) as beats,
    ):
        if directory.exists() != (before is not None):
            raise InputError("another start began here meanwhile", where=run, fix="start the same command again")
        directory.take_request()  # it was meant for an earlier start
        planned = config.checkpoint.save_every_steps if config.health.on_spike == "rollback" else None
        saver = Saver(directory, config.checkpoint, copies, lease, planned)
        job = make_job(ready, directory, engine, record, saver)
        stop.when_grace_ends = partial(_grace_ended, job)
        loaded = None if before is None else _load(job, ready, before)
        if before is not None and loaded is None:
            beginning, config_file = ready.starting_state(), None
        job.beats = beats.begin(engine, job.status.attempt)
        agree(last=True)
        if loaded:
            _continue(job, *loaded)
        else:
            _begin(job, ready, beginning, config_file)
        update_status(job, "starting")
        forwarders.begin(directory, config.logging.report_to)
        write_card(directory, ready, job)
        directory.append_history("started", job.step, **start_record(job))
        say(ready.describe())
        for warning in ready.warnings():
            warn(warning)
        told = time_here and time_here(ready, job.ceiling.flops_per_second, engine.device, job.step)
        speed = f"{job.ceiling.flops_per_second / 1e9:,.0f} GFLOP/s measured in plain matrix multiplication"
        say(f"engine: {engine.description}; {speed}{f'; {told}' if told else ''}")
        directory.log(f"attempt {job.status.attempt}: {engine.description}")
        saver.copy_newest()
        _run(job, stop, ready)


def dry_run(given: RunConfig | FinetuneConfig, run: str, prepare: Prepare) -> Prepared:
    """Raises what a start would raise before it makes anything. Checksums, the network, and a device that this machine
    lacks, with the room there, are left to it."""
    given.logging.require_packages()
    directory = RunDirectory(run)
    _copies(given, directory, reach=False)
    before = _record_before(given, directory)
    ready = prepare(before)
    if before is None:
        directory.require_fresh()
        if ready.begins_from is not None:
            ready.starting_state()
    else:
        now = _record(ready, given, dtype=DTYPES.get(ready.config.engine.dtype, before["dtype"]))
        require_same_run(before, now, directory, type(given))
    try:
        device = choose_device(ready.config.engine)
    except ConfigError:
        return ready
    decided = engine_config(ready.config, before, None)
    require_engine(ready.config.model_copy(update={"engine": decided}), device, ready.flops)
    require_room(ready, directory)
    return ready


def _copies(config: RunConfig | FinetuneConfig, directory: RunDirectory, *, reach: bool = True) -> Copies | None:
    """The run's copies, if it has any."""
    if config.checkpoint.copy_to is None:
        return None
    copies = Copies(config.checkpoint.copy_to, reach)
    if copies.lies_in(directory.location):
        fix = "name a folder on another disk or store"
        raise ConfigError("lies in the run directory itself", where="checkpoint.copy_to", fix=fix)
    return copies


def _record_before(given: RunConfig | FinetuneConfig, directory: RunDirectory) -> dict[str, Any] | None:
    """The run's record; None before its first start. Raises `ConfigError` for a run of the other kind of training."""
    if not directory.exists():
        return None
    before = directory.read_config()
    require_kind(before["config"], type(given), directory.location)
    return before


def _fetched(config: RunConfig | FinetuneConfig, directory: RunDirectory) -> Copies | None:
    """The same, of which the newest is brought into the run directory."""
    copies = _copies(config, directory)
    if copies and copies.steps():
        with leased(directory.location):
            copies.fetch(directory, partial(_require_same, config, directory))
    return copies


def _require_same(config: RunConfig | FinetuneConfig, directory: RunDirectory, copied: dict[str, Any]) -> None:
    """Raises `ConfigError` unless a copy belongs to this run, by the run's record here or else its configuration."""
    own = _record_before(config, directory)
    where = f"checkpoint.copy_to {config.checkpoint.copy_to}"
    require_kind(copied["config"], type(config), where)
    old, new = copied["config"], own["config"] if own else flat(config)
    if own and isinstance(config, RunConfig) and grows(new, old):
        old, new = new, old  # the run got more steps on another machine
    if config.schedule.epochs is not None and isinstance(config, RunConfig):  # its steps are known with the store
        new = new | {key: old[key] for key in ("schedule.steps", "schedule.epochs")}
    refuse_changes(old, new, where, type(config))
    for key in ("store_fingerprint", "tokenizer_fingerprint", "dtype"):
        if own and own[key] != copied.get(key):
            raise ConfigError(f"holds another run's copies (its {key})", where=where, fix="give each run its own")


def _grace_ended(job: Job) -> None:
    """Runs in a thread, while the main thread is in a step or a compiler: the launcher's SIGKILL is near."""
    try:
        while job.saver and job.saver.busy:
            time.sleep(0.05)
        saved = checkpoint.whole_steps(job.directory.checkpoints)
        again = f"the same command goes on from step {saved[-1]:,}" if saved else "the same command starts again"
        error = out_of_time(f"the grace period ended before the step did; {again}")
        update_status(job, "stopped", error.what, error.exit_code, error.reason)
        job.beats.end(error.exit_code, error.what, error.reason)
    finally:
        os._exit(StoppedEarly.exit_code)


def _run(job: Job, stop: StopRequest, ready: Prepared) -> None:
    try:
        with together(job.engine.processes):
            train(job, stop)
            ready.finish(job)
    except StoppedEarly as error:
        if error.reason == "lost":
            _save_finished_steps(job)
        update_status(job, "stopped", str(error), error.exit_code, error.reason)
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, MaskwrightError) else 1
        if not (job.saver and job.saver.lost):  # otherwise the folder belongs to another process
            update_status(job, "failed", str(error) or type(error).__name__, code)
            job.directory.log(f"failed: {error}")
        if isinstance(error, HealthError) and error.step is not None:
            _keep_for_replay(job, ready, error.step, error)
        raise
    stopped = job.objective.settled and job.step < job.steps
    why = f"no longer improving: the best evaluation is that of step {job.objective.best_step:,}" if stopped else ""
    update_status(job, "done", why or "trained to the last step", 0)
    if stopped:
        say(f"step {job.step:,}: {why}")
    say(f"done: {job.directory.location}")


def _save_finished_steps(job: Job) -> None:
    """Saves the updates before the one in which another rank was lost: no rank has finished that one."""
    if job.consistent and job.engine.reads_alone and job.saver and job.step > job.directory.newest_step():
        try:
            save(job)
            job.saver.finish()
        except Exception as failure:  # for example, the device waits for the lost rank for ever
            warn(f"step {job.step:,} cannot be saved: {failure}")


def _keep_for_replay(job: Job, ready: Prepared, step: int, error: HealthError) -> None:
    """Keeps the batch of a failed step. An error here must not hide the one that came before."""
    saved = [found for found in checkpoint.whole_steps(job.directory.checkpoints) if found <= step]
    details = {
        "error": str(error),
        "learning_rate": job.config.learning_rate_at(step),
        "checkpoint": step_folder(saved[-1]) if saved else None,
        "store": ready.identity["store"],
    }
    try:
        folder = ready.keep_for_replay(job, step, details)
        say(f"the batch and the places of its text are in {folder}")
    except Exception as failure:
        warn(f"the batch of step {step} cannot be kept for replay: {failure}")


def _record(ready: Prepared, given: RunConfig | FinetuneConfig, *, dtype: str) -> dict[str, Any]:
    """The record of the run in config.resolved.json and in each checkpoint."""
    config = ready.config if isinstance(ready.config, RunConfig) else given
    return {
        "config": flat(config),
        "digest": config.digest(),
        "model": asdict(ready.model),
        "dtype": dtype,
        **ready.identity,
        **ready.details,
    }


def _base_weights(ready: Prepared, before: dict[str, Any] | None) -> dict[str, Any]:
    """For the record of a run that began from a folder: the checksums of its weights, as they were then. The record of
    a run that is continued keeps what it has of that kind."""
    if before is not None:
        return {
            key: before[key] for key in ("base_weights", "base", "lineage", "fine_tuning", "changes") if key in before
        }
    return ready.base_weights()


def _begin(job: Job, ready: Prepared, state: TrainState, config_file: str | None) -> None:
    directory = job.directory
    job.engine.processes.broadcast(BEGIN)
    job.engine.write(state)
    ready.write_tokenizer(directory.path("tokenizer"))
    copy = directory.path("config.yaml")
    kind: Kind = "pretrain" if isinstance(ready.config, RunConfig) else "finetune"
    source = config_file and find_config(config_file, kind)
    if source and not (os.path.exists(copy) and os.path.samefile(source, copy)):
        with storage.open_binary(source) as given, storage.atomic_writer(copy) as kept:
            kept.write(redact(given.read().decode()).encode())
    storage.write_json(directory.path("environment.json"), environment())
    # Last: with it, the folder is a run.
    storage.write_json(directory.config, {"format": FORMAT, **job.record})


def _add_what_copies_lack(ready: Prepared, directory: RunDirectory) -> None:
    """Adds the files that a new machine lacks after it has fetched the run."""
    if not os.path.exists(directory.path("tokenizer")):
        ready.write_tokenizer(directory.path("tokenizer"))
    if not os.path.exists(directory.path("environment.json")):
        storage.write_json(directory.path("environment.json"), environment())


def _load(job: Job, ready: Prepared, before: dict[str, Any]) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest checkpoint of the run that is continued; None if it was stopped before its first."""
    directory, now = job.directory, job.record
    changes = require_same_run(before, now, directory, type(ready.config))
    _add_what_copies_lack(ready, directory)
    if status := directory.read_status():
        job.status.attempt, job.status.saved = status.attempt + 1, status.saved
        job.status.skipped_updates = status.skipped_updates
    loaded = checkpoint.load_newest(directory.checkpoints, set_aside=True)
    step = loaded[0].step if loaded else 0
    for change in changes:
        say(f"changed since the last start: {change}")
        directory.log(f"changed: {change}")
    now |= history(before, changes, step)
    if changes or any(before.get(key) != now[key] for key in ("threads", "compiled")):
        storage.write_json(directory.config, {"format": FORMAT, **now})
    if loaded is None:
        say("the run was stopped before its first checkpoint: starting again")
        directory.forget_metrics_after(-1)
    job.status.saved = loaded is not None
    return loaded


def _continue(job: Job, state: TrainState, record: dict[str, Any]) -> None:
    job.engine.processes.broadcast(RESTORE)
    again = restore(job, state, record)
    if job.ended:
        say("already trained to its end")
        return
    say(f"continuing at step {state.step:,}" + (f" ({again} log lines come again)" if again else ""))
