"""What processes other than 0 do of a run: compute their share of each step, and write nothing.

Each message from process 0 (`Processes.share`) has its counterpart in `pretrain`, in the same order.
"""

from __future__ import annotations

import json

from maskwright.core.config import RunConfig
from maskwright.core.console import only_warnings
from maskwright.core.errors import StoreError
from maskwright.core.run_directory import RunDirectory
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes, together
from maskwright.tasks import pretrain
from maskwright.tasks.preflight import prepare_run
from maskwright.training.loop import FROM_PROCESS_0, restore, train
from maskwright.training.stop import StopRequest, stop_on_signals


def follow(config: RunConfig, processes: Processes, request: StopRequest, run: str) -> None:
    """Raises what `pretrain` raises; where process 0 fails first, whatever that looks like from here."""
    only_warnings()
    before, fingerprint = json.loads(processes.share(b""))
    ready = prepare_run(config, before)
    if ready.store.fingerprint != fingerprint:
        raise StoreError(
            "is not the store that process 0 reads", where=ready.store.location, fix="give every host a copy of one"
        )
    if before is None:
        ready.store.verify()
    engine = pretrain.start_engine(ready, before)
    request.grace_seconds = config.checkpoint.grace_seconds
    with stop_on_signals(request) as stop:
        job = pretrain.make_job(ready, RunDirectory(run), engine, {}, saver=None)
        if processes.share(b"") == pretrain.BEGIN:
            engine.write(TrainState(0, {}))
        else:
            restore(job, *FROM_PROCESS_0)
        with together(processes):
            train(job, stop)
