"""The batches of the next update, made while a device computes this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from maskwright.data.batch import Batch
from maskwright.training.objective import Objective, UpdateCounts

Update = tuple[list[Batch], UpdateCounts]


class BatchPrefetcher:
    """Of this rank's virtual workers, the `local` ones. `threads`: whether the host has time for them meanwhile. Where
    it asks a GPU for one kernel after another, a second Python thread holds that up: mini took 22.5 instead of 20.1 ms
    a step on an H200.

    Beside that card, a batch of 65,536 tokens takes 2.7 ms to make, and an update of nano little more. One thread at a
    time makes batches, so what the objective remembers needs no lock."""

    def __init__(self, objective: Objective, local: Sequence[int], *, threads: bool) -> None:
        self._objective, self._local = objective, local
        self._pool = ThreadPoolExecutor(1, "batches") if threads else None
        self._next: tuple[int, Future[Update]] | None = None

    def take(self, data_step: int, following: int | None) -> Update:
        """The batches of `data_step`, and begins those of `following`, unless it is None."""
        update = self._made(data_step) or self._make(data_step)
        if self._pool and following is not None:
            self._next = following, self._pool.submit(self._make, following)
        return update

    def _made(self, data_step: int) -> Update | None:
        """None if others were begun: after a rollback."""
        (begun, future), self._next = self._next or (None, None), None
        if future is None:
            return None
        if begun == data_step:
            return future.result()
        future.exception()  # waits, and what came of it does not matter
        return None

    def _make(self, data_step: int) -> Update:
        return self._objective.batches(data_step, self._local), self._objective.work(data_step)

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
