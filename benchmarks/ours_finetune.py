"""Our side of the fine-tuning benchmark, in a process of its own: rows, packing and engine as `finetune` uses them.

    python ours_finetune.py MODEL TRAIN.csv --text text --label category --examples 32 --steps 30

Prints one JSON line. A step's time holds its packing and its update.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time

from maskwright.core.finetuning import build_finetune_config
from maskwright.engines.base import TrainState
from maskwright.run.directory import RunDirectory
from maskwright.tasks.finetune import prepare_finetuning
from maskwright.tasks.start import start_engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    columns = [int(name) if name.isdigit() else name for name in [*arguments.text, arguments.label]]
    config = build_finetune_config(
        {
            "data": {"train": arguments.train, "text": columns[:-1], "label": columns[-1], "max_seq_len": 128},
            "model": {"init_from": arguments.model},
            "schedule": {"steps": arguments.steps},
            "batch": {"examples": arguments.examples},
        },
        "benchmark",
    )
    ready = prepare_finetuning(config, RunDirectory("nowhere"))
    engine = start_engine(ready, None, None)
    engine.write(TrainState(0, ready.starting_parameters()))
    seconds, began, used = [], 0.0, 0.0
    for step in range(arguments.steps):
        if step == arguments.steps // 4:  # the first steps warm up
            seconds, began, used = [], time.perf_counter(), time.process_time()
        start = time.perf_counter()
        engine.step(ready.train.batches(step, [0]), ready.config.learning_rate_at(step), lambda: False)
        engine.check()
        seconds.append(time.perf_counter() - start)
    wall = time.perf_counter() - began
    result = {
        "step_seconds": statistics.median(seconds),
        "examples_per_second": arguments.examples / statistics.median(seconds),
        "cpu_share": (time.process_time() - used) / wall / len(os.sched_getaffinity(0)),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
