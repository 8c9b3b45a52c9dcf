"""Settings and measurements of both sides of the fine-tuning benchmark. It imports neither of them."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--memory-limit", type=int)
    return parser.parse_args()


class Clock:
    """Wall clock and processor time at the end of each step."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.ends: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Ends the process when it has taken more than `--memory-limit` bytes."""
        self.ends.append((time.perf_counter(), time.process_time()))
        if self.given.memory_limit and peak_memory() > self.given.memory_limit:
            sys.stdout.write(json.dumps({"peak_memory_bytes": peak_memory()}) + "\n")
            sys.exit()

    def report(self) -> None:
        """Prints one JSON line. The first quarter of the steps warms up."""
        kept = self.ends[len(self.ends) // 4 - 1 :]
        seconds = statistics.median(after[0] - before[0] for before, after in zip(kept, kept[1:], strict=False))
        wall, used = kept[-1][0] - kept[0][0], kept[-1][1] - kept[0][1]
        result = {
            "step_seconds": seconds,
            "examples_per_second": self.given.examples / seconds,
            "cpu_share": used / wall / len(os.sched_getaffinity(0)),
            "peak_memory_bytes": peak_memory(),
        }
        sys.stdout.write(json.dumps(result) + "\n")


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
