"""A rank's heartbeat in the run directory, written by a thread: training itself only stores numbers.

A host that does not see rank 0's folder writes nothing and creates nothing. Every other rank waits until it finds rank
0's file there, with the id of this start that rank 0 broadcast.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from maskwright.core import records
from maskwright.core.console import warn
from maskwright.core.errors import MaskwrightError, StoppedEarly, StopReason
from maskwright.core.pids import pid_started, this_pid_space
from maskwright.core.storage import final_name
from maskwright.engines.base import Engine
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import FOLDER, Beat, Doing, file_name, rank_of, read_local, write_beat

EVERY_SECONDS = 5.0
WRITES_PER_SECOND = 16.0
"""Limit for all ranks together: 1,024 ranks beat once in 64 seconds, which a network file system does not notice."""
WINDOW_SECONDS, WINDOW_STEPS = 60.0, 20
"""Times per step are means over at least both. A pause of a second is not a slow rank."""
JOIN_SECONDS = 5.0
"""How long the end waits for a write that hangs on a dead file system; then no last heartbeat is written."""

DOING: dict[str, Doing] = {"starting": "starting", "evaluating": "evaluating", "saving": "saving", "waiting": "waiting"}


class Beats:
    """Writes heartbeats from `begin` on. Leaving the context writes the last one, with the process's end."""

    def __init__(self, directory: RunDirectory, rank: int = 0, world_size: int = 1, start: str = "") -> None:
        self.every_seconds = max(EVERY_SECONDS, world_size / WRITES_PER_SECOND)
        self._folder, self._start = directory.path(FOLDER), start
        self._rank, self._world_size, self._attempt = rank, world_size, 0
        self._started = time.time()
        self._computing: Doing = "computing" if world_size == 1 else "step"
        now = time.monotonic()
        self._doing: tuple[Doing, float] = ("starting", now)
        self._moved = self._stepped = self._step_began = now
        self._step, self._waited = 0, 0.0
        self._totals = (0, 0.0, 0.0)
        self._samples: deque[tuple[float, tuple[int, float, float]]] = deque([(now, self._totals)])
        self._exit: int | None = None
        self._message, self._reason = "", ""
        self._seen, self._lost, self._warned = False, False, False
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    # ---- called by the main thread: stores only ----------------------------------------------------------------------

    def look(self, phase: str, step: int) -> None:
        """Records that the main thread is alive. `phase` is one of the run's, or `waiting`."""
        self._moved = time.monotonic()
        doing = DOING.get(phase, self._computing)
        if doing != self._doing[0]:
            self._doing = (doing, self._moved)
        self._step = step

    def begin_step(self, step: int) -> None:
        self.look("training", step)
        self._step_began, self._waited = self._moved, 0.0

    def end_step(self, step: int) -> None:
        self.look("training", step)
        self._stepped = self._moved
        took = self._moved - self._step_began
        steps, seconds, busy = self._totals
        self._totals = (steps + 1, seconds + took, busy + max(took - self._waited, 0.0))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this rank waits for other ranks."""
        before, began = self._doing[0], time.monotonic()
        self._moved, self._doing = began, ("waiting", began)
        try:
            yield
        finally:
            self._moved = time.monotonic()
            self._waited += self._moved - began
            self._doing = (before, self._moved)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def begin(self, engine: Engine, attempt: int = 0) -> Self:
        """Starts writing. Rank 0 passes the attempt; the others read it from rank 0's file."""
        if engine.waiting is not None:
            engine.waiting = self.waiting
            self._computing = "computing"
        self._attempt = attempt
        if self._rank == 0:
            self._clear()
        self._thread = threading.Thread(target=self._work, name="beats", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        code = 0 if error is None else error.exit_code if isinstance(error, MaskwrightError) else 1
        self.end(code, str(error or ""), error.reason if isinstance(error, StoppedEarly) else "")

    def end(self, code: int, message: str, reason: StopReason = "") -> None:
        """Writes the last heartbeat, once."""
        if self._thread is None or self._over.is_set():
            return
        self._over.set()
        self._thread.join(JOIN_SECONDS)
        if not self._thread.is_alive():
            self._exit, self._message, self._reason = code, message[:500], reason
            self._doing = ("ended", time.monotonic())
            self._write()

    def _work(self) -> None:
        while True:
            self._write()
            if self._over.wait(self.every_seconds if self._seen else self.every_seconds / 5.0):
                return

    def _clear(self) -> None:
        """Removes the files of earlier starts, which may have had more ranks. No other rank of this start writes before
        rank 0 has."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if rank_of(final_name(name)) is not None:
                    os.unlink(os.path.join(self._folder, name))
        except OSError as error:
            self._warn(error)

    def _ours(self) -> bool:
        """Whether rank 0 of this start writes to the folder that this process sees. A later start may have taken the
        folder, for example after a long suspension of this one."""
        if self._lost or (self._rank == 0 and not self._seen):
            return not self._lost
        first = records.read(Beat, read_local(os.path.join(self._folder, file_name(0))))
        if first is None:
            return self._seen  # missing for a moment on this file system
        self._lost = self._seen and first.start != self._start
        self._attempt = first.attempt
        return first.start == self._start

    def _write(self) -> None:
        with self._writing:
            if not self._ours():
                return
            try:
                write_beat(self._folder, self._beat())
                self._seen = True
            except FileNotFoundError:
                pass  # the run directory is being removed, or cannot be seen from here
            except OSError as error:
                self._warn(error)

    def _beat(self) -> Beat:
        now, clock = time.monotonic(), time.time()
        per_step, busy = self._means(now)
        doing, since = self._doing
        return Beat(
            rank=self._rank,
            world_size=self._world_size,
            host=platform.node(),
            machine=this_pid_space(),
            pid=os.getpid(),
            pid_started=pid_started(os.getpid()),
            start=self._start,
            attempt=self._attempt,
            started=self._started,
            time=clock,
            every_seconds=self.every_seconds,
            step=self._step,
            stepped=clock - (now - self._stepped),
            doing=doing,
            since=clock - (now - since),
            moved=clock - (now - self._moved),
            seconds_per_step=per_step,
            busy_seconds_per_step=busy if self._computing == "computing" else None,
            exit=self._exit,
            message=self._message,
            reason=self._reason,
        )

    def _means(self, now: float) -> tuple[float | None, float | None]:
        """(seconds, busy seconds) per step over the window; None until it holds enough steps."""
        totals, samples = self._totals, self._samples
        while len(samples) > 1:  # until the second no longer covers the window alone
            then, (before, *_) = samples[1]
            if now - then < WINDOW_SECONDS or totals[0] - before < WINDOW_STEPS:
                break
            samples.popleft()
        samples.append((now, totals))
        steps, seconds, busy = (new - old for new, old in zip(totals, samples[0][1], strict=True))
        if steps < WINDOW_STEPS:
            return (seconds / steps if steps else None), None
        return seconds / steps, busy / steps

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{self._folder}: no heartbeat can be written ({error.strerror or error}); training continues")
