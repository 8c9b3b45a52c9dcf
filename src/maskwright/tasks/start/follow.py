"""What ranks other than 0 do: they compute their share of each step, and write nothing.

Each broadcast from rank 0, and each agreement, has its counterpart in `lead.py`, in the same order.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import flat
from maskwright.core.console import only_warnings
from maskwright.core.errors import ConfigError, StoreError
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Agree, Processes, together
from maskwright.run.directory import RunDirectory
from maskwright.tasks.start.engine import BEGIN, make_job, start_engine
from maskwright.tasks.start.prepared import Prepare, Prepared
from maskwright.training.beats import Beats
from maskwright.training.loop import FROM_RANK_0, restore, train
from maskwright.training.stop import StopRequest, out_of_time, stop_on_signals

OWN_KEYS = {"data.store", "data.mixture", "model.init_from", "engine.threads"}
OWN_KEYS |= {"data.train", "data.validation", "data.test", "model.tokenizer"}
"""Keys that may differ from rank 0's; the contents of those places are compared."""


def follow(
    config: RunConfig | FinetuneConfig,
    run: str,
    prepare: Prepare,
    request: StopRequest,
    processes: Processes,
    agree: Agree,
) -> None:
    """Raises what `train_run` raises. If another rank fails first, its message."""
    only_warnings()
    agree()
    given = json.loads(processes.broadcast(b""))
    before = given["before"]
    _require_same_keys(config, given["config"])
    ready = prepare(before)
    _require_same_run(ready, given)
    if before is None:
        ready.verify()
    request.stop_after_steps = given["stop_after_steps"]
    engine = start_engine(ready, before, given["threads"])
    agree()
    directory = RunDirectory(run)
    beats_of_rank = Beats(directory, processes.rank, processes.world_size, given["start"])
    with stop_on_signals(request) as stop, beats_of_rank as beats:
        job = make_job(ready, directory, engine, {}, saver=None)
        job.rollbacks.all = []  # a folder of that name on this host is not the run's
        stop.when_grace_ends = partial(_grace_ended, beats)
        job.beats = beats.begin(engine)
        agree(last=True)
        if processes.broadcast(b"") == BEGIN:
            engine.write(TrainState(0, {}))
        else:
            restore(job, *FROM_RANK_0)
        with together(processes):
            train(job, stop)
            ready.finish(job)


def _require_same_keys(config: RunConfig | FinetuneConfig, theirs: dict[str, Any]) -> None:
    own = flat(config)
    different = [key for key in own if own[key] != theirs.get(key) and key not in OWN_KEYS]
    if different:
        listed = ", ".join(f"{key}: {own[key]}, there {theirs.get(key)}" for key in different)
        fix = "start the same command with the same file on every host"
        raise ConfigError(f"is not the configuration of rank 0 ({listed})", where=different[0], fix=fix)


def _require_same_run(ready: Prepared, given: dict[str, Any]) -> None:
    if ready.identity["store_fingerprint"] != given["store_fingerprint"]:
        fix = "give every host a copy of one"
        what = "is not the store" if isinstance(ready.config, RunConfig) else "does not hold the examples"
        raise StoreError(f"{what} that rank 0 reads", where=ready.identity["store"], fix=fix)
    if ready.details.get("validation") != given["validation"]:
        fix = "give every host a copy of the same stores"
        raise StoreError("are not the held-out stores that rank 0 reads", where="data.validation", fix=fix)
    if json.loads(json.dumps(asdict(ready.model))) != given["model"]:
        fix = "give every host a copy of one"
        raise ConfigError("is not the model that rank 0 begins with", where="model.init_from", fix=fix)


def _grace_ended(beats: Beats) -> None:
    """Runs in a thread, while the main thread is in a step: the launcher's SIGKILL is near."""
    error = out_of_time("the grace period ended before all processes had stopped; rank 0 knows what is saved")
    beats.end(error.exit_code, error.what, error.reason)
    os._exit(error.exit_code)
