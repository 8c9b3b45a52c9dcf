"""Computes the parts of a long work on data, in this process or in several here, and together with other commands.

A work is a function of one part, so its results do not depend on the process, the order, or the number of parts at
once. A part's files appear whole (`storage.atomic_writer`), so a process may be killed at any time.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self, TypeVar

from maskwright.core.console import Progress, only_warnings
from maskwright.core.errors import MaskwrightError
from maskwright.machine import hardware
from maskwright.processes.claims import POLL_SECONDS, Claims, joined
from maskwright.processes.parent import PARENT, end_with_parent

Part = TypeVar("Part")
Result = TypeVar("Result")


def _ignore(size: int) -> None:
    pass


_advance: Callable[[int], None] = _ignore
MAIN = threading.Lock()
"""Held while the main module is set aside."""
RENEWED_AFTER_BYTES = 4_000_000_000
"""Bytes of parts that a child process computes before it is replaced. gigatoken 0.10 caches every word: up to 0.3 bytes
for each byte of text, if all words are new (https://github.com/marcelroed/gigatoken/issues/36). A new process takes 2
seconds, 2 % of the time for so much text."""

_shared: list[Any] = []
"""The shared count of bytes that all processes of a runner have done."""


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


class Runner:
    """Runs parts in this process or, with `processes` > 1, in that many child processes. In a `with` block these wait
    for the next work."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self.claims: Claims | None = None
        """Claims of the folder in which this command computes with others; None outside `sharing`."""
        self._pool: ProcessPoolExecutor | None = None
        self._entered = False
        self._done: Any = None
        self._shown = 0

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        self._close()

    @contextmanager
    def sharing(self, folder: str, request: str) -> Iterator[Claims]:
        """Shares work with the other commands that `joined` the folder for the same request."""
        before = self.claims
        with joined(folder, request) as claims:
            self.claims = claims
            try:
                yield claims
            finally:
                self.claims = before

    def run(
        self,
        work: Callable[[Part], Result],
        parts: Iterable[tuple[int, Part] | None],
        sizes: Mapping[int, int],
        bar: Progress,
    ) -> Generator[tuple[int, Result]]:
        """Yields (number, result) as parts end, in any order. `parts`: (number, part), each asked for when a process is
        free; None while there is none to compute. `sizes`: bytes of each part, by number; `bar` counts them. `work` is
        a function at the top of a module or a frozen dataclass with `__call__`; it, the parts and the results are small
        and can be pickled.

        Raises the `MaskwrightError` that `work` raises for a part. Closing the iterator kills the processes."""
        if min(self.processes, len(sizes)) > 1 or sum(sizes.values()) > RENEWED_AFTER_BYTES:
            yield from self._by_many(work, parts, sizes, bar)
            return
        for item in parts:
            if item is None:
                time.sleep(POLL_SECONDS)
            else:
                yield item[0], _compute(work, item[1], sizes[item[0]], bar.advance)

    def _by_many(
        self,
        work: Callable[[Part], Result],
        parts: Iterable[tuple[int, Part] | None],
        sizes: Mapping[int, int],
        bar: Progress,
    ) -> Generator[tuple[int, Result]]:
        waiting: dict[Future[Result], int] = {}
        try:
            pool, submitted_bytes = self._opened(), 0
            for item in parts:
                if item is None:
                    yield from self._ended(waiting, bar)
                    continue
                number, part = item
                if submitted_bytes >= self.processes * RENEWED_AFTER_BYTES:
                    while waiting:
                        yield from self._ended(waiting, bar)
                    self._close()
                    pool, submitted_bytes = self._opened(), 0
                submitted_bytes += sizes[number]
                with _main_set_aside():  # it starts processes
                    waiting[pool.submit(_compute, work, part, sizes[number], _add)] = number
                while len(waiting) >= self.processes:
                    yield from self._ended(waiting, bar)
            while waiting:
                yield from self._ended(waiting, bar)
        except BrokenProcessPool:
            self._close()
            fix = "free some memory, or give fewer --workers; the same command continues"
            raise MaskwrightError("one of its processes was killed from outside", fix=fix) from None
        finally:
            if waiting or not self._entered:
                self._close(kill=bool(waiting))

    def _opened(self) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks of an encoder's threads
            self._done, self._shown = spawn.Value("q", 0), 0
            threads = max(len(hardware.usable_cpus()) // self.processes, 1)
            self._pool = ProcessPoolExecutor(self.processes, spawn, _start, (os.getpid(), threads, self._done))
        return self._pool

    def _ended(self, waiting: dict[Future[Result], int], bar: Progress) -> Generator[tuple[int, Result]]:
        ended = wait(waiting, POLL_SECONDS, FIRST_COMPLETED).done
        if not waiting:
            time.sleep(POLL_SECONDS)
        done = self._done.get_obj().value  # without its lock, which a killed process may hold
        bar.advance(done - self._shown)
        self._shown = done
        for future in ended:
            yield waiting.pop(future), future.result()

    def _close(self, *, kill: bool = False) -> None:
        if self._pool:
            for process in list((self._pool._processes or {}).values()) if kill else ():
                process.kill()  # a part may take an hour, and its files appear whole or not at all
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def _main_set_aside() -> Iterator[None]:
    """Lets processes start without the main module, which may be a user's script that each would run again."""
    with MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _add(size: int) -> None:
    with _shared[0].get_lock():
        _shared[0].value += size


def _start(parent: int, threads: int, done: Any) -> None:
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # else each process's tokenizer would use all cores
    _shared.append(done)
    only_warnings()
    for number in (signal.SIGINT, signal.SIGHUP):  # what happens in the terminal is for the parent
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        os.environ[PARENT] = str(parent)
        end_with_parent()
    else:
        threading.Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
