"""Seconds that a user waits: for `--help`, for the first step of mini, and for a batch at step 10^6.

python benchmarks/start.py --text 'corpus/*.txt'
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import alternate, medians, store_of, write_result

from maskwright.config.pretraining import build_config
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore

COMMAND = [os.path.join(os.path.dirname(sys.executable), "maskwright")]


def help_seconds() -> dict[str, float]:
    begin = time.perf_counter()
    subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
    return {"seconds": time.perf_counter() - begin}


def first_step_seconds(store: str, work: str) -> dict[str, float]:
    """From the command to the first step's line in metrics.jsonl, the first validation left out."""
    config = os.path.join(work, "first.yaml")
    with open(config, "w", encoding="utf-8") as file:
        values = {
            "data": {"store": store, "seq_len": 128},
            "model": {"size": "mini"},
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": 32},
            "logging": {"every_steps": 1},
            "evaluation": {"max_rows": 1},
        }
        json.dump(values, file)
    with tempfile.TemporaryDirectory(dir=work) as run:
        begin, metrics = time.perf_counter(), os.path.join(run, "run", "metrics.jsonl")
        process = subprocess.Popen(
            [*COMMAND, "pretrain", config, "--run", os.path.join(run, "run")], stderr=subprocess.DEVNULL
        )
        while True:
            if os.path.exists(metrics) and '"loss"' in Path(metrics).read_text():
                break
            if process.poll() is not None:
                raise SystemExit("the run ended before its first step")
            time.sleep(0.01)
        seconds = time.perf_counter() - begin
        process.terminate()
        process.wait()
    return {"seconds": seconds}


def batch_seconds(store: str, step: int) -> dict[str, float]:
    config = {"data": {"store": store}, "schedule": {"steps": 2_000_000}}
    loader = Loader(build_config(config, "benchmark"), TokenStore(store))
    begin = time.perf_counter()
    loader.batches(step)
    return {"seconds": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--work")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    work = arguments.work or tempfile.mkdtemp()
    store = store_of(arguments.text, work, 50265)
    sides = {
        "help": help_seconds,
        "first_step": lambda: first_step_seconds(store, work),
        "batch_at_step_0": lambda: batch_seconds(store, 0),
        "batch_at_step_1000000": lambda: batch_seconds(store, 1_000_000),
    }
    results = alternate(sides, arguments.rounds)
    seconds = medians(results, "seconds")
    late = statistics.median(
        b["seconds"] / a["seconds"]
        for a, b in zip(results["batch_at_step_0"], results["batch_at_step_1000000"], strict=True)
    )
    write_result(
        "start",
        {
            "help_seconds": seconds["help"]["median"],
            "first_step_seconds": seconds["first_step"]["median"],
            "batch_at_step_1000000_over_step_0": late,
        },
        seconds=seconds,
        rounds=results,
    )


if __name__ == "__main__":
    main()
