"""The beginning of a start, in every rank: its processes meet, rank 0 fetches the newest copy of the run, and all get
the record of the run's last start before anything is prepared."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from maskwright.config.changes import as_begun, grows, refuse_changes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.places import READ, absolute
from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.console import only_warnings, warn
from maskwright.core.errors import CloudError, ConfigError
from maskwright.core.hub import as_pinned
from maskwright.core.lease import leased
from maskwright.engines.choose import find_processes
from maskwright.engines.processes import Agree, Alone, Processes, starting
from maskwright.run.directory import RunDirectory
from maskwright.run.record import RunRecord, parse
from maskwright.run.starts import Starts, StartsFile
from maskwright.training.copies import Copies
from maskwright.training.forwarders import Forwarders, forwarding
from maskwright.training.stop import StopRequest

KEYS_OF_A_HOST = READ | {"engine.threads"}
"""Keys that may differ between ranks. The contents of the places that they name are compared."""
IDENTITY: dict[str, Callable[[RunRecord], str]] = {
    "text": lambda record: record.train.fingerprint,
    "tokenizer": lambda record: record.tokenizer_fingerprint,
    "precision": lambda record: record.dtype,
}
LIMITS = ("stop_after_steps", "stop_at_step", "profile_steps")
"""Fields of `StopRequest` in which all ranks follow rank 0: it alone reads the record of starts."""


@dataclass(frozen=True)
class RunStart:
    """One start of a run, in one of its processes."""

    config: RunConfig | FinetuneConfig
    """As the command gives it; `Prepared` holds the resolved one."""
    directory: RunDirectory
    before: RunRecord | None
    """The record of the run's last start; None for a new run."""
    name: str = ""
    """Identifies the start: the same in all its ranks."""
    request: StopRequest = field(default_factory=StopRequest)
    processes: Processes = field(default_factory=Alone)
    agree: Agree = lambda *, last=False: None
    forwarders: Forwarders = field(default_factory=Forwarders)
    copies: Copies | None = None
    """The run's copies in rank 0; None in the others, and for a run without copies."""
    starts: Starts = field(default_factory=Starts)
    """This start in the run's list of starts; of rank 0."""
    starts_file: StartsFile | None = None
    """None in other ranks."""


@contextmanager
def opened(config: RunConfig | FinetuneConfig, run: str, request: StopRequest | None = None) -> Iterator[RunStart]:
    """Begins or continues the run in the folder `run`. If a rank fails before all train, the others end with its
    message. `request` may carry limits of the run.

    Raises `ConfigError` for a run of the other kind of training, for copies of another run, and in a rank whose
    configuration is not rank 0's; the errors of `StartsFile.require`."""
    request = request or StopRequest()
    request.grace_seconds = config.checkpoint.grace_seconds
    directory = RunDirectory(run)
    storage.require_utf8(directory.location)
    processes, copies, starts, file = None, None, None, None
    try:
        processes = find_processes(config.engine)
        with forwarding() as forwarders, starting(processes) as agree:
            message = b""
            if processes.rank == 0:
                config.logging.require_packages()
                copies = _copies(config, directory)
                if copies and copies.steps():
                    with leased(directory.location):
                        copies.fetch(directory, partial(_require_same_run, config, directory))
                file = StartsFile(directory, copies.folder if copies else None)
                starts = file.following(request.stop_after_hours, request.stop_after_steps)
                file.require(starts)
                request.stop_at, request.stop_at_step = starts.stop_at, starts.stop_at_step
                request.profile_steps *= starts.starts == 1
                before = _record(config, directory)
                record = {"before": before and before.to_json(), "config": flat(config), "name": uuid.uuid4().hex}
                limits = {name: getattr(request, name) for name in LIMITS}
                newest = directory.newest_step()
                message = json.dumps(record | {"limits": limits, "newest": newest}).encode()
            else:
                only_warnings()
            agree()
            shared = json.loads(processes.broadcast(message))
            _require_same_keys(flat(config), shared["config"])
            _require_no_newer(config, directory, shared["newest"])
            for name in LIMITS:
                setattr(request, name, shared["limits"][name])
            last = None if shared["before"] is None else parse(shared["before"], directory.config)
            facts = last, shared["name"], request, processes, agree, forwarders
            yield RunStart(config, directory, *facts, copies, starts or Starts(), file)
    except BaseException as error:
        rank = str(processes.rank) if processes else os.environ.get("RANK", os.environ.get("TPU_WORKER_ID"))
        with suppress(CloudError):  # unreachable copies must not change the exit code
            if rank in ("0", None):
                # A TPU VM that has not found the others has no number yet, and counts on its own disk alone.
                copies = copies or (_copies(config, directory) if rank else None)
                file = file or StartsFile(directory, copies.folder if copies else None)
                file.end_of(starts or file.following(request.stop_after_hours, request.stop_after_steps), error)
        raise


def looked_at(config: RunConfig | FinetuneConfig, run: str) -> RunStart:
    """The start of a dry run: one process, which writes nothing and does not use the network."""
    config.logging.require_packages()
    directory = RunDirectory(run)
    storage.require_utf8(directory.location)
    _copies(config, directory, reach=False)
    return RunStart(config, directory, _record(config, directory))


def _copies(config: RunConfig | FinetuneConfig, directory: RunDirectory, *, reach: bool = True) -> Copies | None:
    """The run's copies, if its configuration names a place for them."""
    if config.checkpoint.copy_to is None:
        return None
    copies = Copies(config.checkpoint.copy_to, reach)
    if copies.lies_in(directory.location):
        fix = "name a folder on another disk or object store"
        raise ConfigError("lies in the run directory itself", where="checkpoint.copy_to", fix=fix)
    return copies


def _record(config: RunConfig | FinetuneConfig, directory: RunDirectory) -> RunRecord | None:
    """The run's record; None before its first start. Raises `ConfigError` for a run of the other kind of training."""
    if not directory.exists():
        return None
    record = directory.read_record()
    _require_kind(record, config, directory.location)
    return record


def _require_kind(record: RunRecord, config: RunConfig | FinetuneConfig, where: str) -> None:
    if (record.kind == "pretrain") != isinstance(config, RunConfig):
        kinds = ("pretraining", "fine-tuning")
        actual, expected = kinds if record.kind == "pretrain" else reversed(kinds)
        raise ConfigError(f"is a run of {actual}, not of {expected}", where=where, fix="give this run a new folder")


def _require_same_run(config: RunConfig | FinetuneConfig, directory: RunDirectory, copied: RunRecord) -> None:
    """Raises `ConfigError` unless a copy belongs to this run, judged by the run's record on this machine or else by its
    configuration."""
    recorded = _record(config, directory)
    where = f"checkpoint.copy_to {config.checkpoint.copy_to}"
    _require_kind(copied, config, where)
    old = copied.keys
    if recorded is None:
        if isinstance(config, RunConfig):  # with epochs, the store decides its steps
            config = as_begun(config, copied.pretraining, copied.warmup_share)
            config = config.with_steps(config.schedule.steps or copied.steps)
        new = flat(absolute(config))
        if base := new["model.init_from"]:
            new["model.init_from"] = as_pinned(base, old["model.init_from"]) or base
    else:
        new = recorded.keys
        if isinstance(config, RunConfig) and grows(new, old):
            old, new = new, old  # the run got more steps on another machine
    refuse_changes(old, new, where, type(config))
    for name, of in IDENTITY.items() if recorded else ():
        if recorded and of(recorded) != of(copied):
            raise ConfigError(f"holds another run's copies (its {name})", where=where, fix="give each run its own")


def _require_no_newer(config: RunConfig | FinetuneConfig, directory: RunDirectory, newest: int) -> None:
    """Raises `ConfigError` where a folder on this host's own disk has a checkpoint after rank 0's `newest`: the hosts
    have changed places, and the run would begin again without it. Warns if rank 0 has one of the run's copies."""
    if (step := directory.newest_step()) > newest:
        if newest and config.checkpoint.copy_to is not None:
            warn(f"step {step:,} is on this host alone, and the run continues from its copy of step {newest:,}")
            return
        what = f"has step {step:,} of the run here, and rank 0's host has {f'step {newest:,}' if newest else 'none'}"
        fix = "start rank 0 on this host, copy the folder to rank 0's, or delete it here; a shared disk avoids this"
        raise ConfigError(what, where=directory.location, fix=fix)


def _require_same_keys(config: dict[str, Any], of_rank_0: dict[str, Any]) -> None:
    different = [key for key in config if config[key] != of_rank_0.get(key) and key not in KEYS_OF_A_HOST]
    if different:
        listed = ", ".join(f"{key}: {config[key]}, there {of_rank_0.get(key)}" for key in different)
        fix = "start the same command with the same file on every host"
        raise ConfigError(f"is not the configuration of rank 0 ({listed})", where=different[0], fix=fix)
