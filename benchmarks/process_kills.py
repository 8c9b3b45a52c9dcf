"""A hundred kills of processes that train together, their number drawn again at each start, against one process alone.

    python benchmarks/process_kills.py --store data/store --kills 100

Each kill, SIGKILL at a random moment, meets one of the training processes or the supervisor of them all. Of a process
the supervisor recovers by itself; when it is killed, the same command is given again with another number of processes.
Checked at the end: weights, optimizer state and metrics, bit for bit; that nothing was left running, and that no step
was ever computed with another loss.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from common import write_result
from kills import losses_differ

from maskwright.config.pretraining import build_config
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory

VIRTUAL_WORKERS, COUNTS = 8, (1, 2, 4)


def config_of(store: str, steps: int) -> dict[str, Any]:
    return build_config(
        {
            "data": {"store": store, "seq_len": 64},
            "model": {"size": "nano", "hidden_dropout": 0.1, "attention_dropout": 0.1},
            "batch": {"micro_batch_rows": 2, "virtual_workers": VIRTUAL_WORKERS},
            "schedule": {"steps": steps, "warmup_steps": steps // 10},
            "checkpoint": {"save_every_seconds": 1.0},
            "evaluation": {"every_steps": max(steps // 6, 1), "max_rows": 32},
            "logging": {"every_steps": 1, "report_to": []},
            "engine": {"device": "cpu", "threads": 1},
        },
        "process-kills",
    ).model_dump()


def start(file: str, directory: RunDirectory, processes: int) -> subprocess.Popen[bytes]:
    words = ["pretrain", file, "--run", directory.location, "--processes", str(processes)]
    with open(f"{directory.location}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "maskwright", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def children(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
    return []


def runs(pid: int) -> bool:
    """Whether it is there, and not merely unburied."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def newest(directory: RunDirectory) -> int:
    return max((line["step"] for line in directory.read_metrics()), default=0)


def killed(file: str, directory: RunDirectory, kills: int, generator: random.Random) -> dict[str, Any]:
    victims = {"processes": 0, "supervisors": 0, "alone": 0}
    recoveries, outlived = [], 0
    process, count = None, 0
    while sum(victims.values()) < kills:
        if process is None:
            count = generator.choice(COUNTS)
            process = start(file, directory, count)
        time.sleep(generator.random() * 5.0)
        if process.poll() is not None:
            if process.returncode == 0:
                break
            raise SystemExit(f"the run ended with {process.returncode}: {directory.location}.log")
        members = children(process.pid)
        began = time.monotonic()
        if count == 1 or not members or generator.random() < 0.3:
            process.kill()
            process.wait()
            victims["alone" if count == 1 else "supervisors"] += 1
            until = time.monotonic() + 5.0
            while any(map(runs, members)) and time.monotonic() < until:
                time.sleep(0.01)
            outlived += sum(map(runs, members))
            process = None
            continue
        with suppress(ProcessLookupError):
            os.kill(generator.choice(members), signal.SIGKILL)
        victims["processes"] += 1
        before = newest(directory)
        while process.poll() is None and newest(directory) <= before and time.monotonic() - began < 120:
            time.sleep(0.05)
        recoveries.append(round(time.monotonic() - began, 2))
    if process is None:
        process = start(file, directory, generator.choice(COUNTS))
    if process.wait():
        raise SystemExit(f"the run ended with {process.returncode}: {directory.location}.log")
    return {"kills": victims, "recovery_seconds": recoveries, "outlived": outlived}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="maskwright-process-kills-")
    file = os.path.join(folder, "config.yaml")
    storage.write_json(file, config_of(arguments.store, arguments.steps))
    straight, bothered = (RunDirectory(os.path.join(folder, name)) for name in ("straight", "killed"))
    if start(file, straight, 1).wait():
        raise SystemExit(f"the run failed: {straight.location}.log")
    found = killed(file, bothered, arguments.kills, random.Random(arguments.seed))
    tensors, lines, differences = compare(straight, bothered)
    other = losses_differ(bothered)
    say(f"{found}; {tensors} tensors, {lines} lines, {differences or 'no difference'}, other losses at {other}")
    recovered = sorted(found["recovery_seconds"])
    write_result(
        "process-kills",
        {
            "kills": sum(found["kills"].values()),
            "different_ends": len(differences),
            "steps_with_other_losses": len(other),
            "processes_that_outlived_their_supervisor": found["outlived"],
            "median_seconds_to_the_next_step": recovered[len(recovered) // 2] if recovered else 0.0,
        },
        tensors=tensors,
        metric_lines=lines,
        virtual_workers=VIRTUAL_WORKERS,
        **found,
    )


if __name__ == "__main__":
    main()
