"""The shared parts of both sides' processes of `scaling.py`, and their start."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from maskwright.engines.processes import Processes
from maskwright.launch.local import LISTENER, WorkerGroup

HERE = Path(__file__).parent


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


def bytes_written() -> int:
    """By this process so far, to sockets too (`wchar` of Linux's proc(5)); 0 elsewhere."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(next(line for line in file if line.startswith("wchar")).split()[1])
    except OSError:
        return 0


class Clock:
    """Of steps: call it after each. The first quarter warms up."""

    def __init__(self, steps: int) -> None:
        self._warm, self._seconds, self._tokens = max(1, steps // 4), list[float](), list[float]()
        self._sent, self._at, self._cpu = bytes_written(), time.perf_counter(), 0.0

    def __call__(self, tokens: float) -> None:
        now = time.perf_counter()
        self._seconds.append(now - self._at)
        self._tokens.append(tokens)
        if len(self._seconds) == self._warm:
            self._cpu = time.process_time()
        self._at = now

    def report(self) -> dict[str, float]:
        """`cpu_seconds` are this process's, of all its threads, in a step."""
        seconds, tokens = self._seconds[self._warm :], self._tokens[self._warm :]
        return {
            "step_seconds": statistics.median(seconds),
            "best_step_seconds": min(seconds),
            "cpu_seconds": (time.process_time() - self._cpu) / len(seconds),
            "tokens_per_second": statistics.median(tokens) / min(seconds),
            "megabytes_sent_per_step": (bytes_written() - self._sent) / len(self._seconds) / 1e6,
        }


def leave(processes: Processes) -> NoReturn:
    """When all are done, and without taking anything down: at the end of one process in some ten, torch 2.13 with gloo
    aborted ("terminate called without an active exception") or waited for ever for its own threads."""
    sys.stdout.flush()
    processes.broadcast(b"")
    os._exit(0)


def start_together(script: str, processes: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """As `maskwright pretrain --processes` starts them: `env://`, all of it on the loopback interface."""
    group, listener = WorkerGroup(processes), socket.create_server(("127.0.0.1", 0), backlog=1024)
    started = []
    for number in range(processes):
        variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        passed = []
        if processes > 1:
            variables |= group.variables(number, listener.getsockname()[1])
        if processes > 1 and number == 0:
            variables[LISTENER], passed = str(listener.fileno()), [listener.fileno()]
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        started.append(
            subprocess.Popen(
                command,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=HERE.parent,
                pass_fds=passed,
            )
        )
    listener.close()
    return started


def wait_for(started: list[subprocess.Popen[str]], seconds: float = 600.0) -> list[dict[str, Any]]:
    """The JSON on the last line of each. When one fails, or none ends in time, all are ended."""
    until = time.monotonic() + seconds
    try:
        while any(process.poll() is None for process in started):
            failed = [process for process in started if process.poll()]
            if failed or time.monotonic() > until:
                for process in started:
                    process.kill()
                said = (failed or started)[0].communicate()[1]
                raise SystemExit(f"{(failed or started)[0].args!r}: {'failed' if failed else 'too slow'}\n{said}")
            time.sleep(0.05)
        ended = [(process, *process.communicate()) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, _, errors in ended:
        if process.returncode:
            raise SystemExit(f"{process.args!r}\n{errors}")
    return [json.loads(out.strip().splitlines()[-1]) for _, out, _ in ended]


def together(script: str, processes: int, *arguments: object) -> dict[str, Any]:
    """The output of process 0, whose step is everyone's."""
    return wait_for(start_together(script, processes, *arguments))[0] | {"load": os.getloadavg()[0]}


def beside_each_other(script: str, copies: int, *arguments: object) -> dict[str, Any]:
    """Alone in their runs, at the same time on the same machine: the slowest of them."""
    started = [process for _ in range(copies) for process in start_together(script, 1, *arguments)]
    found = max(wait_for(started), key=lambda result: result["best_step_seconds"])
    return found | {"load": os.getloadavg()[0]}
