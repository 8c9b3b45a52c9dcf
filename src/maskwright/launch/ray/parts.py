"""Parts of a work on data as tasks of a Ray cluster, a task each. Ray chooses the machine of each and starts it.

Ray Data would do no more here: a part reads files and writes files, and sends a few numbers back. Its blocks of rows
would carry the text through the object store to no use, and in no order that a token store could be cut by.

Ray's own repetitions are off: what it stops for want of memory it begins again without end (`task_oom_retries`, 2.60).
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import shutil
import signal
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from maskwright import __version__
from maskwright.core import storage
from maskwright.core.console import Progress, human_bytes, human_seconds, only_warnings, progress, say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.extras import explain_import, missing
from maskwright.core.hardware import usable_cores

Part = TypeVar("Part")
Result = TypeVar("Result")
REPETITIONS, MEMORY_REPETITIONS = 3, 2
"""Of a part whose worker or machine was lost; of one that was stopped because its machine ran out of memory."""
FLIGHT = 2
"""Parts that are sent for each CPU: an autoscaler adds machines for those that wait."""
LOOK_SECONDS, PROBE_SECONDS, WAIT_SECONDS = 2.0, 120.0, 30.0
CANCEL_SECONDS = 5.0
SLOW, SLOW_SECONDS = 3.0, 10.0
"""A part is slow when it has taken so many times the median, and at least so long."""
STORE_BYTES = 100_000_000
"""Memory for objects of a cluster of our own: what parts send is small."""
BOARD = ".ray-"
"""A folder in the one that all machines see, where each part that is being computed has a file."""
GOES_ON = "the same command goes on with the parts that are left"


@contextmanager
def connected(address: str | None, worker_memory_bytes: int | None = None) -> Iterator[Tasks]:
    """A runner on the cluster at `address` (`ray://HOST:10001` or `HOST:6379`); None for the one that this machine is
    in, or else one that is started here for as long as it takes. `worker_memory_bytes`: what Ray reserves for each
    part. Raises `InputError` without the package, `MaskwrightError` where nothing answers."""
    try:
        import ray
    except ImportError:
        raise missing("ray", "--on") from None
    if address is not None and address.startswith(("http://", "https://")):
        fix = f"submit the command: ray job submit --address {address} -- maskwright … --on ray"
        raise InputError("is the address of jobs, not of a cluster to compute on", where=f"ray:{address}", fix=fix)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            _join_or_start(quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        fix = "give --on ray:ray://HOST:10001, or on a machine of the cluster --on ray:HOST:6379, with its versions of "
        fix += "Ray and Python, and its token in RAY_AUTH_TOKEN if it has one"
        raise MaskwrightError(f"cannot be joined: {reason}", where=f"ray:{address or ''}", fix=fix) from None
    finally:
        for number, handler in handlers.items():  # `init` has put its own there
            signal.signal(number, handler)
    tasks = None
    try:
        tasks = Tasks(worker_memory_bytes)
        yield tasks
    finally:
        if tasks is not None:
            tasks.take_board_away()
        ray.shutdown()


def _join_or_start(quiet: dict[str, Any]) -> None:
    import ray

    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        cores = usable_cores()
        own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        ray.init(address="local", _node_ip_address="127.0.0.1", **own, **quiet)
        say(f"there is no Ray cluster here: one is started on this machine, with {cores} CPUs")


@dataclass(frozen=True)
class _Answer:
    """What a task sends back: a result, or an error that the user has to know."""

    node: str
    seconds: float
    peak_bytes: int
    result: Any = None
    error: Exception | None = None


def _compute(work: Callable[[Any], Any], part: Any, number: int, cwd: str, board: str | None) -> _Answer:
    """A part, by a worker of Ray. On `board` lies a file for each part that is being computed."""
    import ray

    began, node = time.monotonic(), ray.util.get_node_ip_address()
    only_warnings()
    # A task reserves one CPU; the threads of the tokenizers would take all.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    sign = os.path.join(board, str(number)) if board else None
    result, failure = None, None
    try:
        with suppress(OSError):
            os.chdir(cwd)
        if board and not os.path.isdir(board):
            raise _unseen(node, os.path.dirname(board))
        if sign:
            with open(sign, "w", encoding="utf-8") as file:
                file.write(f"{node} (process {os.getpid()})")
        result = work(part)
    except ImportError as error:
        failure = explain_import(error) or error
        failure = MaskwrightError(f"{failure} on {node}", where="Ray", fix="every machine of the cluster needs it")
    except (MaskwrightError, OSError) as error:
        failure = error
    finally:
        if sign:
            with suppress(OSError):
                os.unlink(sign)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _Answer(node, time.monotonic() - began, peak, result, failure)


def _unseen(node: str, path: str) -> MaskwrightError:
    fix = "name it by its whole path, on storage that all machines of the cluster have mounted there"
    return MaskwrightError(f"is not seen by {node}, a machine of the Ray cluster", where=path, fix=fix)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


class Tasks:
    """The `Runner` of a cluster that this process is connected to."""

    def __init__(self, worker_memory_bytes: int | None) -> None:
        self.options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0}
        if worker_memory_bytes:
            self.options["memory"] = worker_memory_bytes
        self._board: str | None = None
        nodes = self._nodes()
        most = max((float(node["Resources"].get("memory", 0)) for node in nodes), default=0.0)
        if worker_memory_bytes and worker_memory_bytes > most:
            what = f"is more than the largest machine of the cluster has, {human_bytes(most)}"
            raise InputError(what, where=f"--worker-memory {human_bytes(worker_memory_bytes)}", fix="lower it")
        self._require_same(nodes)
        say(f"Ray cluster: {_counted(len(nodes), 'machine')}, {_counted(self._slots(), 'part')} at once")

    def _nodes(self) -> list[dict[str, Any]]:
        """Those that can compute a part."""
        import ray

        return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _slots(self) -> int:
        slots = 0
        for node in self._nodes():
            room = [int(node["Resources"]["CPU"])]
            if memory := self.options.get("memory"):
                room.append(int(node["Resources"].get("memory", 0) // memory))
            slots += min(room)
        return slots

    # ---- what each machine must have -------------------------------------------------------------------------

    def _require_same(self, nodes: list[dict[str, Any]]) -> None:
        """Raises `MaskwrightError` for a machine without this version of maskwright."""

        def version() -> str | None:
            try:
                from maskwright import __version__ as found
            except ImportError:
                return None
            return found

        for node, found in self._ask(nodes, version):
            if found != __version__:
                what = f"{node} has maskwright {found}" if found else f"{node} has no maskwright"
                fix = f"install maskwright {__version__} where `ray start` runs, on every machine of the cluster"
                raise MaskwrightError(f"{what}, and this machine has {__version__}", where="Ray", fix=fix)

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        self.take_board_away()
        folder, token = os.path.abspath(folder), secrets.token_hex(8)
        for name in os.listdir(folder):
            if name.startswith(BOARD):  # of a driver that was killed
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        self._board = os.path.join(folder, f"{BOARD}{token}")
        storage.make_folder(self._board)
        with storage.atomic_writer(sign := os.path.join(self._board, "token")) as file:
            file.write(token.encode())
        local = [name for name in files if not storage.is_url(name)]

        def unseen(cwd: str, sign: str, token: str, names: list[str]) -> str | None:
            import os

            try:
                with open(sign) as file:
                    found = file.read()
                with open(f"{sign}-{os.getpid()}-{id(found)}", "w") as file:
                    file.write(token)
                os.unlink(file.name)
            except OSError:
                return sign
            if os.path.isdir(cwd):
                os.chdir(cwd)
            return sign if found != token else next((name for name in names if not os.path.exists(name)), None)

        for node, path in self._ask(self._nodes(), unseen, os.getcwd(), sign, token, local):
            if path is not None:
                raise _unseen(node, folder if path == sign else path)

    def take_board_away(self) -> None:
        if self._board is not None:
            shutil.rmtree(self._board, ignore_errors=True)

    def _ask(self, nodes: list[dict[str, Any]], what: Callable[..., Any], *words: Any) -> list[tuple[str, Any]]:
        """(machine, its answer) of each. `what` stands inside a function, so that Ray sends its code: the machine may
        not have ours."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not nodes:
            fix = "add machines; those that an autoscaler may add do not count yet"
            raise MaskwrightError("has no machine with a CPU for tasks", where="Ray", fix=fix)
        task, answers = ray.remote(what), []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answers.append(task.options(num_cpus=0, max_retries=2, scheduling_strategy=there).remote(*words))
        names = [str(node["NodeManagerAddress"]) for node in nodes]
        try:
            return list(zip(names, ray.get(answers, timeout=PROBE_SECONDS), strict=True))
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:200]
            fix = "see `ray status` and the workers' logs"
            raise MaskwrightError(f"a machine does not start a worker: {reason}", where="Ray", fix=fix) from None

    # ---- computing -------------------------------------------------------------------------------------------

    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        import ray

        task, shared, cwd = ray.remote(_compute).options(**self.options), ray.put(work), os.getcwd()
        waiting, running = deque(range(len(parts))), dict[Any, int]()
        with progress(title, sum(sizes), "bytes") as bar:
            watch = _Watch(title, len(parts), self._board, bar)
            try:
                while waiting or running:
                    while waiting and len(running) < max(FLIGHT * watch.slots(self._slots), 1):
                        number = waiting.popleft()
                        running[task.remote(shared, parts[number], number, cwd, self._board)] = number
                    for reference in ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)[0]:
                        number = running.pop(reference)
                        answer = _answer(reference, number, watch)
                        if answer is None:
                            waiting.appendleft(number)
                            continue
                        watch.ended(number, answer, sizes[number])
                        yield number, answer.result
                    watch.look(set(running.values()))
                watch.conclude(sum(sizes))
            finally:
                for reference in running:
                    with suppress(Exception):  # a cluster that is lost has nothing to cancel
                        ray.cancel(reference, force=True)
                if running:
                    with suppress(Exception):
                        ray.wait(list(running), num_returns=len(running), timeout=CANCEL_SECONDS)


def _answer(reference: Any, number: int, watch: _Watch) -> _Answer | None:
    """None for a part that is to be computed again."""
    import ray
    from ray import exceptions

    try:
        answer: _Answer = ray.get(reference)
    except exceptions.OutOfMemoryError:
        if watch.lost(number, "was stopped: its machine ran out of memory") <= MEMORY_REPETITIONS:
            return None
        used = f", more than the {human_bytes(watch.peak_bytes)} that a worker has taken" * bool(watch.peak_bytes)
        fix = f"give --worker-memory{used}, so that fewer are computed at once on a machine; {GOES_ON}"
        raise MaskwrightError(
            "its machine ran out of memory again and again", where=f"part {number}", fix=fix
        ) from None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError):
        times = watch.lost(number, "is computed again: its worker was lost")
        if times <= REPETITIONS:
            return None
        fix = "see Ray's logs of that machine; if its memory was used up, give --worker-memory, so that fewer are "
        fix += f"computed at once on a machine; {GOES_ON}"
        raise MaskwrightError(f"its worker was lost {times} times", where=f"part {number}", fix=fix) from None
    except exceptions.RayTaskError:
        raise
    except exceptions.RayError as error:
        reason = " ".join(str(error).split())[:300]
        raise MaskwrightError(f"the cluster was lost: {reason}", where="Ray", fix=GOES_ON) from None
    if answer.error is not None:
        raise answer.error
    return answer


class _Watch:
    """What is shown of a work: parts done, those that are slow and where, those that were lost."""

    def __init__(self, title: str, parts: int, board: str | None, bar: Progress) -> None:
        self.title, self.parts, self.board, self.bar = title, parts, board, bar
        self.losses = Counter[int]()
        self.peak_bytes = 0
        self._seconds: list[float] = []
        self._nodes = Counter[str]()
        self._begun: dict[int, float] = {}
        """When each part was first seen running."""
        self._slow = set[int]()
        self._began = self._looked_at = self._heard_at = time.monotonic()
        self._slots, self._counted_at = 0, -LOOK_SECONDS

    def slots(self, count: Callable[[], int]) -> int:
        """Asked for each part; the cluster is asked every few seconds."""
        now = time.monotonic()
        if now - self._counted_at >= LOOK_SECONDS:
            self._slots, self._counted_at = count(), now
        return self._slots

    def lost(self, number: int, what: str) -> int:
        """How many times by now."""
        self.losses[number] += 1
        self._begun.pop(number, None)
        where = self._where(number)
        with suppress(OSError):
            os.unlink(os.path.join(self.board or "", str(number)))
        say(f"{self.title}: part {number} {what}{where and f', on {where}'}")
        return self.losses[number]

    def ended(self, number: int, answer: _Answer, size: int) -> None:
        self._seconds.append(answer.seconds)
        self._nodes[answer.node] += 1
        self._begun.pop(number, None)
        self._heard_at = time.monotonic()
        self.peak_bytes = max(self.peak_bytes, answer.peak_bytes)
        self.bar.advance(size, f"{len(self._seconds):,}/{self.parts:,} parts")

    def look(self, running: set[int]) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for name in os.listdir(self.board) if self.board else ():
            if name.isdecimal() and int(name) in running:
                self._begun.setdefault(int(name), now)
        usual = statistics.median(self._seconds) if self._seconds else float("inf")
        for number in running - self._slow:
            if number in self._begun and now - self._begun[number] > max(SLOW * usual, SLOW_SECONDS):
                self._slow.add(number)
                taken, where = human_seconds(now - self._begun[number]), self._where(number)
                say(f"{self.title}: part {number} has been running for {taken} on {where}; the median is {usual:.3g} s")
        if self._begun:
            self._heard_at = now
        elif now - self._heard_at > WAIT_SECONDS:
            self._heard_at = now
            say(f"{self.title}: no part has begun for {WAIT_SECONDS:.0f} s: the cluster's CPUs or memory are in use")
        self.bar.advance(0)

    def _where(self, number: int) -> str:
        with suppress(OSError), open(os.path.join(self.board or "", str(number)), encoding="utf-8") as file:
            return file.read()
        return ""

    def conclude(self, size: int) -> None:
        seconds = time.monotonic() - self._began
        again = sum(self.losses.values())
        told = [
            f"{self.title}: {_counted(self.parts, 'part')} on {_counted(len(self._nodes), 'machine')}",
            f"{human_bytes(size)} in {human_seconds(seconds)} ({human_bytes(size / max(seconds, 1e-9))}/s)",
            f"at most {human_bytes(self.peak_bytes)} a worker",
            *([f"{again} computed again because a worker was lost"] if again else []),
        ]
        if self.parts:
            say(", ".join(told))
