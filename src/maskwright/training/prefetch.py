"""The batches of the next update, made while a device computes this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from maskwright.data.batch import Batch
from maskwright.training.objective import Objective, UpdateCounts

Update = tuple[list[Batch], UpdateCounts]


class BatchPrefetcher:
    """Prepares the batches of the `local` virtual workers, ahead if the host has time. If it launches a GPU's kernels
    one by one, a second Python thread slows it down: mini took 22.5 instead of 20.1 ms a step on an H200.

    On that host, a batch of 65,536 tokens takes 2.7 ms to make, and an update of nano little more. One thread at a time
    makes batches, so the objective's state needs no lock."""

    def __init__(self, objective: Objective, local: Sequence[int]) -> None:
        self._objective, self._local = objective, local
        self._pool = ThreadPoolExecutor(1, "batches")  # it starts its thread once it has work
        self._next: tuple[int, Future[Update]] | None = None

    def take(self, data_step: int, following: int | None) -> Update:
        """Returns the batches of `data_step`, and begins the batches of `following` in a thread, unless it is None."""
        update = self._made(data_step) or self._make(data_step)
        if following is not None:
            self._next = following, self._pool.submit(self._make, following)
        return update

    def _made(self, data_step: int) -> Update | None:
        """The prepared batches; None if they are of another step, as after a rollback."""
        (begun, future), self._next = self._next or (None, None), None
        if future is None:
            return None
        if begun == data_step:
            return future.result()
        future.exception()  # waits; the result does not matter
        return None

    def _make(self, data_step: int) -> Update:
        return self._objective.batches(data_step, self._local), self._objective.work(data_step)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
