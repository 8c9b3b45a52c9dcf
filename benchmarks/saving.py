"""What a save costs training: `base`, 512 tokens, 8 rows a step, on this machine.

    python benchmarks/saving.py --text 'corpus/*.txt'

The seconds for which the loop stands still while the state is copied (what training waits for), those by which the
steps during the writing are longer than others, and, for comparison, what a save in the loop would take. The share is
of training with the default `checkpoint.save_every_seconds`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from common import store_of, write_result

from maskwright.config.pretraining import CheckpointSection, build_config
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.lease import Lease
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import RunFacts, TrainState
from maskwright.engines.torch.engine import TorchEngine
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint
from maskwright.training.saver import Saver


class Training:
    def __init__(self, location: str, size: str) -> None:
        self.config = build_config(
            {
                "data": {"store": location, "seq_len": 512},
                "model": {"size": size},
                "schedule": {"steps": 1_000_000},
                "batch": {"micro_batch_rows": 8},
            },
            "benchmark",
        )
        store, config = TokenStore(location), self.config
        shape = model_config(config.model, store.vocabulary.size, 512)
        self.loader, self.done = Loader(config, store), 0
        self.engine = TorchEngine(shape, config.optimizer, config.engine, 0, RunFacts(flops=1e18))
        self.engine.write(TrainState(0, initial_parameters(shape, 0)))

    def step(self) -> float:
        begin = time.perf_counter()
        self.engine.step(self.loader.batches(self.done), 1e-4)
        self.engine.check()
        self.done += 1
        return time.perf_counter() - begin


def one_round(training: Training, folder: str, ordinary_steps: int) -> dict[str, Any]:
    directory = RunDirectory(folder)
    storage.write_json(directory.config, {})  # without a record, a run counts as deleted
    saver = Saver(directory, CheckpointSection(keep=1), None, Lease(directory.path("lease.json")))
    ordinary = statistics.median([training.step() for _ in range(ordinary_steps)])
    begin = time.perf_counter()
    state = training.engine.read()
    saver.begin(state, {}, None)
    waited, during = time.perf_counter() - begin, []
    while saver.busy:
        during.append(training.step())
    saver.finish()
    begin = time.perf_counter()
    checkpoint.save(f"{folder}/in-the-loop", TrainState(1, state.parameters, state.moments), {}, keep=1)
    return {
        "step_seconds": ordinary,
        "waited_seconds": waited,
        "slower_seconds": max(sum(during) - ordinary * len(during), 0.0),
        "in_the_loop_seconds": waited + time.perf_counter() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--work", default="benchmark-work")
    parser.add_argument("--size", default="base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    training = Training(store_of(arguments.text, arguments.work, 50265), arguments.size)
    training.step()
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
            rounds.append(one_round(training, folder, arguments.steps))
        say(str(rounds[-1]))
    middle = {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
    every = CheckpointSection().save_every_seconds or 0.0
    cost = middle["waited_seconds"] + middle["slower_seconds"]
    write_result(
        "saving",
        {
            "share_of_training": cost / every,
            "waited_over_step": middle["waited_seconds"] / middle["step_seconds"],
            "in_the_loop_over_cost": middle["in_the_loop_seconds"] / cost,
        },
        save_every_seconds=every,
        medians=middle,
        rounds=rounds,
    )


if __name__ == "__main__":
    main()
