"""Our side of `scaling.py`: one of the processes, as `pretrain --processes` starts them (`env://` variables, gloo).

    WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 … python scaling_process.py STORE

Prints one JSON line. A step's time holds its batches, its update and what the processes send each other. All begin each
step together anyway, since none has its update before the others have sent theirs.
"""

from __future__ import annotations

import argparse
import json

from scaling_common import Clock, leave, options

from maskwright.config.pretraining import RunConfig, build_config
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.engines.choose import make_engine
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters


def config_of(arguments: argparse.Namespace) -> RunConfig:
    return build_config(
        {
            "data": {"store": arguments.store, "seq_len": arguments.seq_len},
            "model": {"size": arguments.size},
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": arguments.rows, "virtual_workers": arguments.virtual_workers},
            "engine": {"device": "cpu", "threads": 1},
        },
        "benchmark",
    )


def main() -> None:
    arguments = options()
    run = config_of(arguments)
    store = TokenStore(arguments.store)
    shape = model_config(run.model, store.vocabulary.size, arguments.seq_len)
    loader = Loader(run, store)
    engine = make_engine(shape, run.optimizer, run.engine, 0)
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    workers = engine.local_virtual_workers(arguments.virtual_workers)
    clock = Clock(arguments.steps)
    for step in range(arguments.steps):
        batches = loader.batches(step, virtual_workers=workers)
        engine.step(batches, 1e-4, lambda: False)
        clock(sum(batch.text_tokens for batch in batches) * engine.dp_degree)
    print(json.dumps(clock.report()))
    leave(engine.processes)


if __name__ == "__main__":
    main()
