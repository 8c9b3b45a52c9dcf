"""Runners of a long work on data in parts: this process, processes of this machine, or a cluster.

A work is a function of one part, so its results do not depend on the worker, the order, or the number of parts at
once. A part's files are in a folder that all machines see, and appear whole (`storage.atomic_writer`), so a part may be
computed twice if its first worker is lost, or only seems so.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol, Self, TypeVar

from maskwright.core.console import Progress, only_warnings, progress
from maskwright.core.errors import MaskwrightError
from maskwright.machine import hardware
from maskwright.processes.parent import PARENT, end_with_parent

Part = TypeVar("Part")
Result = TypeVar("Result")
FLIGHT = 2
"""Parts that are running or queued for each process."""
POLL_SECONDS = 0.5


class Runner(Protocol):
    @property
    def processes(self) -> int | None:
        """Number of local processes that compute all parts; None if a cluster's do."""
        ...

    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        """Yields (index in `parts`, its result) as parts end, in any order. `work` is a function at the top of a
        module or a frozen dataclass with `__call__`; it, the parts and the results are small and can be pickled.
        `title` and `sizes` [parts], in bytes, are for the progress.

        Raises the `MaskwrightError` that `work` raises for a part; then no further part is begun. Closing the
        iterator stops the running parts."""
        ...

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        """Called before `run`. Raises `MaskwrightError` unless every machine that computes sees and can write the
        existing `folder`, and sees `files`; URLs are not checked."""
        ...


def _ignore(size: int) -> None:
    pass


_advance: Callable[[int], None] = _ignore
MAIN = threading.Lock()
"""Held while the main module is set aside."""
RENEWED_AFTER_BYTES = 4_000_000_000
"""Bytes of parts that a process, of this machine or of a cluster, computes before it is replaced. gigatoken 0.10 caches
every word: up to 0.3 bytes for each byte of text, if all words are new
(https://github.com/marcelroed/gigatoken/issues/36). A new process takes 2 seconds, 2 % of the time for so much text."""

_shared: list[Any] = []
"""The shared count of bytes that all processes of `Here` have done."""


def advance(size: int) -> None:
    """Reports progress; a work calls it when `size` more bytes of its part are done."""
    _advance(size)


def _compute(work: Callable[[Part], Result], part: Part, size: int, add: Callable[[int], None]) -> Result:
    """Computes a part. The calls of `add` sum to `size`."""
    global _advance
    left = size

    def report(done: int) -> None:
        nonlocal left
        done = min(done, left)
        left -= done
        add(done)

    _advance = report
    gc.freeze()  # garbage collection then skips imported objects: saves a twelfth of the time of encoding
    try:
        result = work(part)
    finally:
        gc.unfreeze()
        _advance = _ignore
    add(left)
    return result


class Here:
    """Runs parts in this process or, with `processes` > 1, in that many child processes. In a `with` block these wait
    for the next work."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._entered = False
        self._done: Any = None

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        self._close()

    def _close(self, *, kill: bool = False) -> None:
        if self._pool:
            for process in list((self._pool._processes or {}).values()) if kill else ():
                process.kill()  # a part may take an hour, and its files appear whole or not at all
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        pass

    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        with progress(title, sum(sizes), "bytes") as bar:
            if min(self.processes, len(parts)) > 1 or sum(sizes) > RENEWED_AFTER_BYTES:
                yield from self._by_many(work, parts, sizes, bar)
                return
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                yield number, _compute(work, part, size, bar.advance)

    def _by_many(
        self, work: Callable[[Part], Result], parts: Sequence[Part], sizes: Sequence[int], bar: Progress
    ) -> Generator[tuple[int, Result]]:
        waiting: dict[Future[Result], int] = {}
        try:
            pool, submitted_bytes = self._opened(), 0
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                if submitted_bytes >= self.processes * RENEWED_AFTER_BYTES:
                    while waiting:
                        yield from self._ended(waiting, bar)
                    self._close()
                    pool, submitted_bytes = self._opened(int(bar.done)), 0
                submitted_bytes += size
                with _main_set_aside():  # it starts processes
                    waiting[pool.submit(_compute_there, work, part, size)] = number
                while len(waiting) >= FLIGHT * self.processes:
                    yield from self._ended(waiting, bar)
            while waiting:
                yield from self._ended(waiting, bar)
        except BrokenProcessPool:
            self._close()
            fix = "free some memory, or give fewer --workers; the same command goes on where it stopped"
            raise MaskwrightError("one of its processes was killed from outside", fix=fix) from None
        finally:
            if waiting or not self._entered:
                self._close(kill=bool(waiting))

    def _opened(self, done: int = 0) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks of an encoder's threads
            self._done = spawn.Value("q", 0)
            threads = max(len(hardware.usable_cpus()) // self.processes, 1)
            self._pool = ProcessPoolExecutor(self.processes, spawn, _start, (os.getpid(), threads, self._done))
        self._done.value = done
        return self._pool

    def _ended(self, waiting: dict[Future[Result], int], bar: Progress) -> Generator[tuple[int, Result]]:
        ended = wait(waiting, POLL_SECONDS, FIRST_COMPLETED).done
        bar.advance(self._done.value - bar.done)
        for future in ended:
            yield waiting.pop(future), future.result()


@contextmanager
def _main_set_aside() -> Iterator[None]:
    """Lets processes start without the main module, which may be a user's script: each would run it again."""
    with MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _compute_there(work: Callable[[Part], Result], part: Part, size: int) -> Result:
    return _compute(work, part, size, _add)


def _add(size: int) -> None:
    with _shared[0].get_lock():
        _shared[0].value += size


def _start(parent: int, threads: int, done: Any) -> None:
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # else each process's tokenizer would use all cores
    _shared.append(done)
    only_warnings()
    for number in (signal.SIGINT, signal.SIGHUP):  # what happens in the terminal is for the parent
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere children of a killed parent wait for ever
        os.environ[PARENT] = str(parent)
        end_with_parent()
