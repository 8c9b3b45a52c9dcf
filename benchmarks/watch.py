"""The cost of watching 100 runs: CPU-seconds of `maskwright watch` on one core.

    python benchmarks/watch.py

All of the runs train, and each has 100,000 lines of training and 5,000 of evaluation in `metrics.jsonl`. `first` is the
first look at all of them; `later` is a look after each run has written a line and a heartbeat, the mean of 20. `curve`
is the first look at the curve of one run's loss, which reads its whole file, and `grown_curve` the same curve after a
line more. Imports are left out, and so is drawing. The runs share one file of lines, which was just written, so it is
in the page cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import tempfile
import time
from dataclasses import asdict
from typing import Any

from common import alternate, medians, write_result

from maskwright.config.pretraining import build_config
from maskwright.config.settings import flat
from maskwright.core.folder import Folder
from maskwright.core.pids import pid_started, this_pid_space
from maskwright.monitor.watch.runs import Runs
from maskwright.monitor.watch.series import RunCurves
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.heartbeat import Beat, file_name
from maskwright.run.record import RecordedText, RunRecord

RUNS, LINES, LATER, POINTS = 100, 100_000, 20, 1_000
EVALUATED = 20
"""Lines of training between two evaluations."""


def lines(number: int) -> str:
    """The line of training with this number, and an evaluation after some."""
    chance = random.Random(number)
    step, loss = number * 10, 2.4 + 6.2 * math.exp(-number / LINES * 6) + chance.gauss(0, 0.06)
    training = {
        "step": step,
        "epoch": 0.25,
        "tokens": step * 4096,
        "loss": round(loss, 5),
        "learning_rate": 1e-3 * (1 - number / (2 * LINES)),
        "masking_rate": 0.3,
        "grad_norm": round(0.8 + abs(chance.gauss(0, 0.12)), 4),
        "tokens_per_second": round(10_200 + chance.gauss(0, 350), 1),
        "cpu_share": 0.981,
        "memory_share": 0.42,
        "time": 1.79e9 + number * 4.0,
    }
    held_out = {"step": step, "valid_loss": round(loss, 5), "valid_accuracy": 0.4, "time": training["time"]}
    return "".join(json.dumps(one) + "\n" for one in [training, held_out][: 1 + (number % EVALUATED == 0)])


class Sweep:
    """`RUNS` run directories below `root`, with this process as the only rank of each."""

    def __init__(self, root: str) -> None:
        self.root, self.written = root, LINES
        self.folders = [os.path.join(root, f"run-{number:03d}") for number in range(RUNS)]
        metrics = os.path.join(root, "metrics.jsonl")
        with open(metrics, "w", encoding="utf-8") as file:
            file.writelines(lines(number) for number in range(1, LINES + 1))
        text = RecordedText("none", "none")
        keys = flat(build_config({"data": {"store": "none"}, "schedule": {"steps": LINES * 20}}, ""))
        record = RunRecord("pretrain", keys, LINES * 20, "", {}, "float32", "", "", text, {"": text}, None)
        for folder in self.folders:
            os.makedirs(os.path.join(folder, "processes"))
            os.makedirs(os.path.join(folder, "checkpoints", "step-00500000"))
            os.link(metrics, os.path.join(folder, "metrics.jsonl"))
            RunDirectory(folder).write_record(record)
            self._write(os.path.join(folder, "checkpoints", "step-00500000", "MANIFEST.json"), {"files": {}})
            with open(os.path.join(folder, "history.jsonl"), "w", encoding="utf-8") as file:
                file.write(json.dumps({"step": 0, "event": "started", "time": 1.79e9}) + "\n")
        self.grow()

    def grow(self) -> None:
        """Each run writes its regular lines."""
        self.written += 1
        with open(os.path.join(self.root, "metrics.jsonl"), "a", encoding="utf-8") as file:
            file.write(lines(self.written))
        step, now, pid = self.written * 10, time.time(), os.getpid()
        status = Status(phase="training", step=step, of=LINES * 20, tokens_per_second=1e4, heartbeat=now)
        beat = Beat(
            rank=0,
            world_size=1,
            host=platform.node(),
            machine=this_pid_space(),
            pid=pid,
            pid_started=pid_started(pid),
            start="first",
            attempt=1,
            started=now - 4_000,
            time=now,
            every_seconds=5.0,
            step=step,
            stepped=now,
            doing="computing",
            since=now,
            moved=now,
            seconds_per_step=0.4,
        )
        for folder in self.folders:
            self._write(os.path.join(folder, "status.json"), asdict(status))
            self._write(os.path.join(folder, "processes", file_name(0)), asdict(beat))

    def _write(self, path: str, value: dict[str, Any]) -> None:
        with open(f"{path}.draft", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(f"{path}.draft", path)


def one_round(sweep: Sweep) -> dict[str, float]:
    def seconds(look: Any) -> float:
        begin = time.process_time()
        look()
        return time.process_time() - begin

    runs, series = Runs([sweep.root]), RunCurves(Folder(sweep.folders[0]))
    found = {"first": seconds(runs.refresh), "later": 0.0}
    rows = runs.rows()
    assert len(rows) == RUNS and {row["state"] for row in rows} == {"running"}, rows[:1]
    for _ in range(LATER):
        sweep.grow()
        found["later"] += seconds(runs.refresh) / LATER + seconds(runs.rows) / LATER
    for name in ("curve", "grown_curve"):
        sweep.grow()
        found[name] = seconds(lambda: series.curves(["loss"], POINTS))
    assert series.curves(["loss"], POINTS)["loss"]["step"][-1] == sweep.written * 10
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    root = tempfile.mkdtemp(dir=arguments.work)
    try:
        sweep = Sweep(root)
        results = alternate({"watch": lambda: one_round(sweep)}, arguments.rounds)
        size = os.path.getsize(os.path.join(root, "metrics.jsonl"))
    finally:
        shutil.rmtree(root)
    seconds = {name: medians(results, name)["watch"] for name in ("first", "later", "curve", "grown_curve")}
    write_result(
        "watch",
        {f"{name}_cpu_seconds": one["median"] for name, one in seconds.items()},
        cpu_seconds=seconds,
        runs=RUNS,
        bytes_of_a_run=size,
        rounds=results["watch"],
    )


if __name__ == "__main__":
    main()
