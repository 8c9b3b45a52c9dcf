"""Saving during training: a thread writes the state that the engine handed over, one checkpoint at a time."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from maskwright.config.pretraining import CheckpointSection
from maskwright.core.console import warn
from maskwright.core.errors import CheckpointError, HealthError, MaskwrightError
from maskwright.core.lease import Lease
from maskwright.engines.base import TrainState
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint
from maskwright.training.copies import Copies
from maskwright.training.health import HEALTH_FIX


class Saver:
    """Saves checkpoints in the background. `begin` returns at once; the next call of any other method raises errors."""

    def __init__(
        self,
        directory: RunDirectory,
        options: CheckpointSection,
        copies: Copies | None,
        lease: Lease,
    ) -> None:
        self._directory, self._options, self._lease = directory, options, lease
        self._copier = Copier(directory, options, copies) if copies else None
        self._pool = ThreadPoolExecutor(1, "save")
        self._save: Future[None] | None = None
        self.saved = False
        """Whether a save has succeeded."""

    def begin(self, state: TrainState, record: dict[str, Any], best: int | None) -> None:
        """Starts a save, after the one before has ended. `state` belongs to the saver from here on. `best`: a step
        whose checkpoint and copy are not deleted."""
        self.finish()
        self._save = self._pool.submit(self._work, state, record, best)

    @property
    def lost(self) -> bool:
        """Whether another process has taken the folder over."""
        return self._lease.lost

    @property
    def busy(self) -> bool:
        return self._save is not None and not self._save.done()

    def look(self) -> None:
        """Called after each step. Raises `InputError` if another process has taken the folder over."""
        self._lease.require()
        if not self.busy:
            self.finish()

    def finish(self) -> None:
        """Waits for the save in progress. Raises its `CheckpointError` or `HealthError`."""
        error = self._save.exception() if self._save else None
        self._save = None
        if error:
            raise error

    def wait(self) -> None:
        """Does the same as `finish` without raising: for the end of a run that has failed already."""
        if self._save:
            wait([self._save])

    def copy_newest(self, best: int | None) -> None:
        """Copies the newest checkpoint at a start, in case the previous start had no time for it. `best`: as in
        `begin`."""
        steps = checkpoint.whole_steps(self._directory.checkpoints)
        if self._copier and steps:
            self._copier.ask(steps[-1], best)

    def wait_for_copy(self) -> CheckpointError | None:
        """Waits for the last copy. Returns its error."""
        self.finish()
        return self._copier.wait() if self._copier else None

    def copy_ended(self, step: int) -> None:
        """Copies what the run has written since its last save, at `step`, whose copy has ended. Raises
        `CheckpointError`."""
        if self._copier:
            self._copier.copy_ended(step)

    def _work(self, state: TrainState, record: dict[str, Any], best: int | None) -> None:
        for name, array in state.parameters.items():
            if not np.isfinite(array).all():
                raise HealthError(f"step {state.step}: {name} is no longer finite; not saved", fix=HEALTH_FIX)
        self._lease.require()
        if not self._directory.exists():  # a save would bring back a folder without record and tokenizer
            fix = "start the command again in a folder that nothing deletes"
            raise CheckpointError("was deleted while its run was training", where=self._directory.location, fix=fix)
        keep, every = self._options.keep, self._options.keep_every_steps
        folder = self._directory.checkpoints
        path = checkpoint.save(folder, state, record, keep=keep, keep_every_steps=every, best=best)
        self.saved = True
        self._directory.log(f"saved {path}")
        self._directory.append_history("saved", state.step)
        if self._copier:
            self._copier.ask(state.step, best)


class Copier:
    """Copies the newest requested checkpoint in a thread of its own, so that an unreachable store stops neither
    training nor saving."""

    def __init__(self, directory: RunDirectory, options: CheckpointSection, copies: Copies) -> None:
        self._directory, self._options, self._copies = directory, options, copies
        self._lock = threading.Lock()
        self._wanted: tuple[int, int | None] | None = None
        self._thread: threading.Thread | None = None
        self._failed: CheckpointError | None = None

    def ask(self, step: int, best: int | None) -> None:
        """Requests a copy of `step`. `best`: another step whose copy is kept."""
        with self._lock:
            self._wanted = step, best
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="copy", daemon=True)
                self._thread.start()

    def wait(self) -> CheckpointError | None:
        """Waits until nothing is left to copy. Returns the last copy's error."""
        thread = self._thread
        if thread:
            thread.join()
        return self._failed

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            self._copy(*wanted)

    def _copy(self, step: int, best: int | None) -> None:
        self._failed = None
        try:
            kept = [local for local in checkpoint.whole_steps(self._directory.checkpoints) if local == best != step]
            for each in [*kept, step]:
                self._copies.put(self._directory, each, self._options.keep, self._options.keep_every_steps, best=best)
            self._directory.log(f"copied step {step} to {self._copies.location}")
        except Exception as error:
            if step not in checkpoint.whole_steps(self._directory.checkpoints):
                return  # deleted meanwhile, so a newer one is requested next
            self._failed = self._not_copied(f"step {step:,} is saved here but not copied", error)
            warn(str(self._failed))

    def copy_ended(self, step: int) -> None:
        """See `Saver.copy_ended`."""
        try:
            self._copies.put_ended(self._directory, step)
        except Exception as error:
            what = "the run has ended here, and its last evaluation is not copied"
            raise self._not_copied(what, error) from None

    def _not_copied(self, what: str, error: Exception) -> CheckpointError:
        """A copy's error. It keeps its own fix where the store can be reached, as when another run uses the place."""
        why = error.what if isinstance(error, MaskwrightError) else error
        later = "start the same command again when the store can be reached"
        fix = error.fix if isinstance(error, CheckpointError) else later
        return CheckpointError(f"{what}: {why}", where=self._copies.location, fix=fix)
