"""Computes the parts of a work on data as tasks of a Ray cluster, which chooses the machine of each.

Ray Data would not help here: a part reads and writes files, and returns a few numbers. Blocks of rows would only carry
the text through the object store, and in no order that a token store needs.

Ray's own retries are off: it retries a task that ran out of memory without end (`task_oom_retries`, 2.60).
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import secrets
import shutil
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TypeVar

from maskwright import __version__
from maskwright.core import storage
from maskwright.core.console import human_bytes, only_warnings, progress, say, several, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.extras import explain_import, missing
from maskwright.machine.hardware import usable_cores
from maskwright.processes import runner
from maskwright.processes.child import signals_wait
from maskwright.processes.ray.authentication import choose_mode, refusal, require_token
from maskwright.processes.ray.watch import TaskResult, Watch

Part = TypeVar("Part")
Result = TypeVar("Result")
REPETITIONS, MEMORY_REPETITIONS = 3, 2
"""Retries of a part whose worker or machine was lost; and of one whose machine ran out of memory."""
FLIGHT = 2
"""Parts submitted for each CPU: an autoscaler adds machines for those that wait."""
POLL_SECONDS, PROBE_SECONDS = 0.5, 120.0
CONNECT_SECONDS, CANCEL_SECONDS = 2.0, 5.0
STORE_BYTES = 100_000_000
"""Memory for objects of a cluster that this process starts: the results of parts are small."""
BOARD = ".ray-"
"""Prefix of a folder that all machines see; each running part has a file in it."""
FEWER = ", so that a machine computes fewer parts at once"
GOES_ON = "the same command goes on with the parts that are left"


@contextmanager
def connected(address: str | None, worker_memory_bytes: int | None = None) -> Iterator[Tasks]:
    """Yields a runner on the cluster at `address` (`ray://HOST:10001` or `HOST:6379`); None for this machine's cluster,
    or else one that is started here meanwhile. `worker_memory_bytes`: memory that Ray reserves for each part. Raises
    `InputError` without the package, `MaskwrightError` if no cluster answers."""
    address = address or _running_here()
    if address is not None:
        if address.startswith(("http://", "https://")):
            fix = f"submit the command: ray job submit --address {address} -- maskwright … --on ray"
            raise InputError("is the address of jobs, not of a cluster to compute on", where=f"ray:{address}", fix=fix)
        choose_mode()  # before the import, which reads it
    try:
        import ray
    except ImportError:
        raise missing("ray", "--on") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with signals_wait():  # it also restores the handlers that `init` replaces
            if address:
                require_token(address)
                ray.init(address=address, **quiet)
            else:
                cores = usable_cores()
                small = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
                ray.init(address="local", _node_ip_address="127.0.0.1", **small, **quiet)
                say(f"no Ray cluster is running: starting one on this machine, with {several(cores, 'CPU')}")
    except ray.exceptions.AuthenticationError:
        raise refusal(f"ray:{address}") from None
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        fix = "give --on ray:ray://HOST:10001, or on a machine of the cluster --on ray:HOST:6379, with its versions of "
        fix += "Ray and Python"
        raise MaskwrightError(f"cannot be joined: {reason}", where=f"ray:{address or ''}", fix=fix) from None
    tasks = None
    try:
        with redirect_stdout(sys.stderr):  # Ray prints messages about workers, which are not results
            tasks = Tasks(worker_memory_bytes)
            yield tasks
    finally:
        if tasks is not None:
            tasks.remove_board()
        ray.shutdown()


def _running_here() -> str | None:
    """The cluster in Ray's variable, or one that was started on this machine and answers. Ray's `auto` waits minutes
    for a killed cluster, and uses one of any other process."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    with suppress(OSError, ValueError):
        with open(os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")) as file:
            address = file.read().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        return address
    return None


def _compute(work: Callable[[Any], Any], part: Any, number: int, cwd: str, board: str | None) -> TaskResult:
    """Computes a part in a worker of Ray. `board`: folder with a file for each running part."""
    began, node = time.monotonic(), platform.node()
    only_warnings()
    # A task reserves one CPU; the tokenizers' threads would use all.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    marker = os.path.join(board, str(number)) if board else None
    result: Any = None
    failure: Exception | None = None
    try:
        with suppress(OSError):
            os.chdir(cwd)
        if board and not os.path.isdir(board):
            raise _unseen(node, os.path.dirname(board))
        if marker:
            with open(marker, "w", encoding="utf-8") as file:
                file.write(f"{node} (process {os.getpid()})")
        result = work(part)
    except ImportError as error:
        explained = explain_import(error)
        what, fix = (explained.what, explained.fix) if explained else (str(error), "install the missing package")
        failure = MaskwrightError(f"{what} on {node}, a machine of the Ray cluster", where="Ray", fix=fix)
    except (MaskwrightError, OSError) as error:
        failure = error
    finally:
        if marker:
            with suppress(OSError):
                os.unlink(marker)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return TaskResult(node, time.monotonic() - began, peak, result, failure)


def _unseen(node: str, path: str) -> MaskwrightError:
    fix = "give its absolute path, on storage that all machines of the cluster have mounted there"
    return MaskwrightError(f"is not seen by {node}, a machine of the Ray cluster", where=path, fix=fix)


class Tasks:
    """The `Runner` of a cluster that this process is connected to."""

    processes = None

    def __init__(self, worker_memory_bytes: int | None) -> None:
        self.options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0}
        if worker_memory_bytes:
            self.options["memory"] = worker_memory_bytes
        self._board: str | None = None
        nodes = self._nodes()
        largest = max((float(node["Resources"].get("memory", 0)) for node in nodes), default=0.0)
        if worker_memory_bytes and worker_memory_bytes > largest:
            what = f"is more than the largest machine of the cluster has, {human_bytes(largest)}"
            raise InputError(what, where=f"--worker-memory {human_bytes(worker_memory_bytes)}", fix="lower it")
        self._require_same(nodes)
        say(f"Ray cluster: {several(len(nodes), 'machine')}, {several(self._slots(), 'part')} at once")

    def _nodes(self) -> list[dict[str, Any]]:
        """Machines that can compute a part."""
        import ray

        return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _slots(self) -> int:
        wanted = {"CPU": 1, **({"memory": self.options["memory"]} if "memory" in self.options else {})}
        rooms = [node["Resources"] for node in self._nodes()]
        return sum(min(int(room.get(name, 0) // size) for name, size in wanted.items()) for room in rooms)

    # ---- requirements of each machine ------------------------------------------------------------------------

    def _require_same(self, nodes: list[dict[str, Any]]) -> None:
        """Raises `MaskwrightError` for a machine without this version of maskwright."""

        def version() -> str | None:
            try:
                from maskwright import __version__ as installed
            except ImportError:
                return None
            return installed

        for node, version_there in self._ask(nodes, version):
            if version_there != __version__:
                what = f"{node} has maskwright {version_there}" if version_there else f"{node} has no maskwright"
                fix = f"install maskwright {__version__} where `ray start` runs, on every machine of the cluster"
                raise MaskwrightError(f"{what}, and this machine has {__version__}", where="Ray", fix=fix)

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        self.remove_board()
        folder, token = os.path.abspath(folder), secrets.token_hex(8)
        for name in os.listdir(folder):
            if name.startswith(BOARD):  # left by a killed driver
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        self._board = os.path.join(folder, f"{BOARD}{token}")
        storage.make_folder(self._board)
        with storage.atomic_writer(token_file := os.path.join(self._board, "token")) as file:
            file.write(token.encode())
        local = [name for name in files if not storage.is_url(name)]

        def unseen(cwd: str, token_file: str, token: str, names: list[str]) -> str | None:
            import os

            try:
                with open(token_file) as file:
                    content = file.read()
                with open(f"{token_file}-{os.getpid()}-{id(content)}", "w") as file:
                    file.write(token)
                os.unlink(file.name)
            except OSError:
                return token_file
            if os.path.isdir(cwd):
                os.chdir(cwd)
            return token_file if content != token else next((name for name in names if not os.path.exists(name)), None)

        for node, path in self._ask(self._nodes(), unseen, os.getcwd(), token_file, token, local):
            if path is not None:
                raise _unseen(node, folder if path == token_file else path)

    def remove_board(self) -> None:
        if self._board is not None:
            shutil.rmtree(self._board, ignore_errors=True)

    def _ask(self, nodes: list[dict[str, Any]], probe: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """(machine, its answer) for each of `nodes`. `probe` is defined inside a function, so that Ray sends its code:
        a machine may not have maskwright."""
        import ray
        from ray import exceptions
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not nodes:
            fix = "add machines (those that an autoscaler may add do not count yet)"
            raise MaskwrightError("has no machine with a CPU for tasks", where="Ray", fix=fix)
        task, answers = ray.remote(probe), []
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answers.append(task.options(num_cpus=0, max_retries=2, scheduling_strategy=strategy).remote(*arguments))
        names = [str(node["NodeManagerHostname"]) for node in nodes]
        deadline = time.monotonic() + PROBE_SECONDS
        left = answers
        while left and time.monotonic() < deadline:
            with signals_wait():
                left = ray.wait(left, num_returns=len(left), timeout=POLL_SECONDS)[1]
        results = []
        for name, answer in zip(names, answers, strict=True):
            try:
                results.append((name, ray.get(answer, timeout=POLL_SECONDS)))
            except (exceptions.NodeDiedError, exceptions.TaskUnschedulableError, exceptions.WorkerCrashedError):
                warn(f"{name}, a machine of the Ray cluster, was lost: it gets no parts")
            except exceptions.RayError as error:
                reason = " ".join(str(error).split())[:200]
                fix = "see `ray status` and the workers' logs"
                raise MaskwrightError(f"{name} does not start a worker: {reason}", where="Ray", fix=fix) from None
        return results

    # ---- computing -------------------------------------------------------------------------------------------

    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        import ray

        # Sizes of parts differ, so the bytes after which a worker is replaced hold on average.
        calls = max(runner.RENEWED_AFTER_BYTES * len(parts) // max(sum(sizes), 1), 1)
        task = ray.remote(max_calls=calls)(_compute).options(**self.options)
        shared, cwd = ray.put(work), os.getcwd()
        waiting, running = deque(range(len(parts))), dict[Any, int]()
        with progress(title, sum(sizes), "bytes") as bar:
            watch = Watch(title, len(parts), self._board, bar)
            try:
                while waiting or running:
                    ended: list[tuple[int, TaskResult]] = []
                    with signals_wait():  # an exception inside Ray's own code would be a SystemError
                        while waiting and len(running) < max(FLIGHT * watch.slots(self._slots), 1):
                            number = waiting.popleft()
                            running[task.remote(shared, parts[number], number, cwd, self._board)] = number
                        for reference in ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)[0]:
                            number = running.pop(reference)
                            if answer := _answer(reference, number, watch):
                                ended.append((number, answer))
                            else:
                                waiting.appendleft(number)
                    for number, answer in ended:
                        watch.ended(number, answer, sizes[number])
                        yield number, answer.result
                    watch.poll(set(running.values()))
                watch.conclude(sum(sizes))
            finally:
                for reference in running:
                    with suppress(Exception):  # a lost cluster cannot cancel
                        ray.cancel(reference, force=True)
                if running:
                    with suppress(Exception):
                        ray.wait(list(running), num_returns=len(running), timeout=CANCEL_SECONDS)


def _answer(reference: Any, number: int, watch: Watch) -> TaskResult | None:
    """The result of a part; None if it must be computed again."""
    import ray
    from ray import exceptions

    try:
        answer: TaskResult = ray.get(reference)
    except exceptions.OutOfMemoryError:
        times = watch.lost(number, "was stopped: its machine ran out of memory")
        if times <= MEMORY_REPETITIONS:
            return None
        used = f", more than the {human_bytes(watch.peak_bytes)} that a worker has used" * bool(watch.peak_bytes)
        fix = f"give --worker-memory{used}{FEWER}; {GOES_ON}"
        raise MaskwrightError(f"its machine ran out of memory {times} times", where=f"part {number}", fix=fix) from None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError):
        times = watch.lost(number, "is computed again: its worker was lost")
        if times <= REPETITIONS:
            return None
        fix = f"see Ray's logs of that machine; if it ran out of memory, give --worker-memory{FEWER}; {GOES_ON}"
        raise MaskwrightError(f"its worker was lost {times} times", where=f"part {number}", fix=fix) from None
    except exceptions.RayTaskError:
        raise
    except exceptions.RayError as error:
        reason = " ".join(str(error).split())[:300]
        raise MaskwrightError(f"the cluster was lost: {reason}", where="Ray", fix=GOES_ON) from None
    if answer.error is not None:
        raise answer.error
    return answer
