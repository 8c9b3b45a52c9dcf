"""Saving while training goes on: a thread writes what the engine handed over, one checkpoint at a time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from maskwright.core import config as run
from maskwright.core.console import warn
from maskwright.core.errors import CheckpointError, HealthError, MaskwrightError
from maskwright.core.lease import Lease
from maskwright.core.run_directory import RunDirectory
from maskwright.engines.base import TrainState
from maskwright.training import checkpoint
from maskwright.training.copies import Copies


class Saver:
    """`begin` returns at once; what went wrong is raised by the next call of any other method."""

    def __init__(self, directory: RunDirectory, options: run.Checkpoint, copies: Copies | None, lease: Lease) -> None:
        self._directory, self._options, self._copies, self._lease = directory, options, copies, lease
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._copy_failed: MaskwrightError | None = None

    def begin(self, state: TrainState, record: dict[str, Any]) -> None:
        """Starts a save; waits for the one before first. `state` is the saver's from here on."""
        self.finish()
        self._thread = threading.Thread(target=self._work, args=(state, record), name="save")
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def look(self) -> None:
        if not self.busy:
            self.finish()

    def finish(self) -> None:
        """Waits for the save under way. Raises its `CheckpointError` or `HealthError`."""
        self.wait()
        error, self._error = self._error, None
        if error:
            raise error

    def wait(self) -> None:
        """Without raising: for the end of a run that has failed already."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def require_copied(self) -> None:
        """Raises `CheckpointError` when the last checkpoint is here but its copy is not on the object store."""
        self.finish()
        if self._copy_failed:
            raise self._copy_failed

    def _work(self, state: TrainState, record: dict[str, Any]) -> None:
        try:
            for name, array in state.parameters.items():
                if not np.isfinite(array).all():
                    raise HealthError(
                        f"step {state.step}: {name} is no longer finite; not saved",
                        fix="start a new run from the last good checkpoint with a lower optimizer.learning_rate",
                    )
            self._lease.require()
            keep, every = self._options.keep, self._options.keep_every_steps
            path = checkpoint.save(self._directory.checkpoints, state, record, keep=keep, keep_every_steps=every)
            self._directory.log(f"saved {path}")
            if self._copies:
                self._copy(self._copies, state.step)
        except Exception as error:
            self._error = error

    def _copy(self, copies: Copies, step: int) -> None:
        """A store that is away for a while does not stop training; only a run that ends without a copy fails."""
        self._copy_failed = None
        try:
            copies.put(self._directory, step, keep=self._options.keep, keep_every_steps=self._options.keep_every_steps)
            self._directory.log(f"copied step {step} to {copies.location}")
        except (MaskwrightError, OSError) as error:
            self._copy_failed = CheckpointError(
                f"step {step:,} is saved here but not copied: {error}",
                where=copies.location,
                fix="start the same command again once the store can be reached",
            )
            warn(str(self._copy_failed))
