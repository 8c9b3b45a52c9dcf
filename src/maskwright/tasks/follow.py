"""What processes other than 0 do of a run: compute their share of each step, and write nothing.

Each message from process 0 (`Processes.share`), and each agreement, has its counterpart in `pretrain`, in the same
order.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from typing import Any

from maskwright.core.config import ALL_KEYS, RunConfig, flat
from maskwright.core.console import only_warnings
from maskwright.core.errors import ConfigError, StoreError
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Agree, Processes, together
from maskwright.run.directory import RunDirectory
from maskwright.tasks.preflight import Prepared, prepare_run
from maskwright.tasks.start import BEGIN, make_job, start_engine
from maskwright.training.beats import Beats
from maskwright.training.loop import FROM_PROCESS_0, restore, train
from maskwright.training.stop import StopRequest, out_of_time, stop_on_signals

OWN_KEYS = {"data.store", "model.init_from", "engine.threads"}
"""What a host may have in another place or number than process 0's; what is in those places is compared."""


def follow(config: RunConfig, run: str, request: StopRequest, processes: Processes, agree: Agree) -> None:
    """Raises what `pretrain` raises; where another process fails first, what that one said."""
    only_warnings()
    agree()
    told = json.loads(processes.share(b""))
    before = told["before"]
    _require_same_keys(config, told["config"])
    ready = prepare_run(config, before)
    _require_same_run(ready, told)
    if before is None:
        ready.store.verify()
    request.stop_after_steps = told["stop_after_steps"]
    engine = start_engine(ready, before, told["threads"])
    agree()
    directory = RunDirectory(run)
    mine = Beats(directory, processes.number, processes.count, told["start"])
    with stop_on_signals(request) as stop, mine as beats:
        job = make_job(ready, directory, engine, {}, saver=None)
        job.rollbacks.all = []  # a folder of that name on this host is not the run's
        stop.when_grace_ends = partial(_grace_ended, beats)
        job.beats = beats.begin(engine)
        agree(last=True)
        if processes.share(b"") == BEGIN:
            engine.write(TrainState(0, {}))
        else:
            restore(job, *FROM_PROCESS_0)
        with together(processes):
            train(job, stop)


def _require_same_keys(config: RunConfig, theirs: dict[str, Any]) -> None:
    own = flat(config)
    different = [key for key in ALL_KEYS if own[key] != theirs[key] and key not in OWN_KEYS]
    if different:
        listed = ", ".join(f"{key}: {own[key]}, there {theirs[key]}" for key in different)
        raise ConfigError(
            f"is not the configuration of process 0 ({listed})",
            where=different[0],
            fix="start the same command with the same file on every host",
        )


def _require_same_run(ready: Prepared, told: dict[str, Any]) -> None:
    if ready.store.fingerprint != told["store_fingerprint"]:
        raise StoreError(
            "is not the store that process 0 reads", where=ready.store.location, fix="give every host a copy of one"
        )
    if json.loads(json.dumps(asdict(ready.model))) != told["model"]:
        raise ConfigError(
            "is not the model that process 0 begins with", where="model.init_from", fix="give every host a copy of one"
        )


def _grace_ended(beats: Beats) -> None:
    """In a thread, while the main one is in a step: the launcher's SIGKILL is near."""
    what = "the grace period ended before all processes had come to a stop; process 0 knows what is saved"
    error = out_of_time(what)
    beats.end(error.exit_code, what, error.reason)
    os._exit(error.exit_code)
