"""A long work on data in parts, and who computes them: this process, processes of this machine, or a cluster.

A work is a function of one part alone, so its results do not depend on who computes them, how many at once, or in
which order. What a part writes lies in a folder that all machines see, and appears whole (`storage.atomic_writer`), so
that a part may be computed twice: its first worker may be lost, or only be thought lost.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol, TypeVar

from maskwright.core.console import progress
from maskwright.core.errors import MaskwrightError
from maskwright.core.parent import PARENT, end_with_parent

Part = TypeVar("Part")
Result = TypeVar("Result")
FLIGHT = 2
"""Parts that are begun or wait for each process."""


class Runner(Protocol):
    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        """Yields (number in `parts`, its result) as parts end, in any order. `work` is a function at the top of a
        module or a frozen dataclass with `__call__`; it, the parts and the results are small and can be pickled.
        `title` and `sizes` [parts], in bytes, are for the progress.

        Raises what `work` raises for a part, as the same `MaskwrightError`; no further part is begun then. Closing the
        iterator stops what is being computed."""
        ...

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        """Called before `run`. Raises `MaskwrightError` unless every machine that computes sees and can write `folder`,
        which is there, and sees `files`; those that are URLs are passed over."""
        ...


@dataclass(frozen=True)
class Here:
    """This process or, with `processes` > 1, so many others of this machine."""

    processes: int = 1

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        pass

    def run(
        self, work: Callable[[Part], Result], parts: Sequence[Part], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Result]]:
        with progress(title, sum(sizes), "bytes") as bar:
            for number, result in self._alone(work, parts) if self.processes < 2 else self._by_many(work, parts):
                bar.advance(sizes[number])
                yield number, result

    def _alone(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[tuple[int, Result]]:
        for number, part in enumerate(parts):
            yield number, work(part)

    def _by_many(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[tuple[int, Result]]:
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks of an encoder's threads
        pool = ProcessPoolExecutor(self.processes, spawn, _start, (os.getpid(),))
        waiting: dict[Future[Result], int] = {}
        try:
            for number, part in enumerate(parts):
                waiting[pool.submit(work, part)] = number
                while len(waiting) >= FLIGHT * self.processes:
                    yield from _ended(waiting)
            while waiting:
                yield from _ended(waiting)
        except BrokenProcessPool:
            fix = "free some memory, or give fewer --workers; the same command goes on where it stopped"
            raise MaskwrightError("one of its processes was killed from outside", fix=fix) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _ended(waiting: dict[Future[Result], int]) -> Generator[tuple[int, Result]]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield waiting.pop(future), future.result()


def _start(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the parent
    if sys.platform == "linux":  # elsewhere a parent that is killed leaves them to wait
        os.environ[PARENT] = str(parent)
        end_with_parent()
