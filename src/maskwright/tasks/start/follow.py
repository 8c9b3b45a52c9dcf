"""Ranks other than 0: they compute their share of each step, and write nothing.

Each broadcast from rank 0, and each agreement, has its counterpart in `train.py`, in the same order.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from typing import Any

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import ConfigError, StoreError
from maskwright.engines.base import TrainState
from maskwright.engines.processes import together
from maskwright.tasks.start.engine import BEGIN, make_job, start_engine
from maskwright.tasks.start.opened import RunStart
from maskwright.tasks.start.prepared import Prepared
from maskwright.training import loop
from maskwright.training.beats import Beats
from maskwright.training.loop import FROM_RANK_0, restore
from maskwright.training.stop import out_of_time, stop_on_signals


def follow(start: RunStart, ready: Prepared) -> None:
    """Trains in a rank other than 0. Raises what `train` raises; if another rank fails first, with its message."""
    processes, directory = start.processes, start.directory
    if start.before is None:
        ready.verify()
    start.agree()
    decided = json.loads(processes.broadcast(b""))
    _require_same_run(ready, decided)
    engine = start_engine(ready, start.before, decided["threads"])
    start.agree()
    beats_of_rank = Beats(directory, processes.rank, processes.world_size, start.name)
    with stop_on_signals(start.request) as stop, beats_of_rank as beats:
        job = make_job(ready, directory, engine, None, saver=None)
        stop.when_grace_ends = partial(_grace_ended, beats)
        job.beats = beats.begin(engine)
        start.agree(last=True)
        if processes.broadcast(b"") == BEGIN:
            engine.write(TrainState(0, {}))
        else:
            restore(job, *FROM_RANK_0)
        with together(processes):
            loop.train(job, stop)
            ready.finish(job)


def _require_same_run(ready: Prepared, decided: dict[str, Any]) -> None:
    train, held_out = ready.texts
    if train.fingerprint != decided["text"]:
        fix = "give every host a copy of one"
        what = "is not the store" if isinstance(ready.config, RunConfig) else "does not hold the examples"
        raise StoreError(f"{what} that rank 0 reads", where=train.location, fix=fix)
    if {name: text.fingerprint for name, text in held_out.items()} != decided["held_out"]:
        fix = "give every host a copy of the same stores"
        raise StoreError("are not the held-out stores that rank 0 reads", where="data.validation", fix=fix)
    if json.loads(json.dumps(asdict(ready.model))) != decided["model"]:
        fix = "give every host a copy of one"
        raise ConfigError("is not the model that rank 0 begins with", where="model.init_from", fix=fix)


def _grace_ended(beats: Beats) -> None:
    """Runs in a thread, while the main thread is in a step: the launcher's SIGKILL is near."""
    error = out_of_time("the grace period ended before all processes had stopped; rank 0 reports what is saved")
    beats.end(error.exit_code, error.what, error.reason)
    os._exit(error.exit_code)
