"""A run whose data and model have been checked and fit together, from either kind of training."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.engines.base import TrainState
from maskwright.machine.devices import DeviceCount
from maskwright.model.config import ModelConfig
from maskwright.run.record import BeganFrom, RecordedText, RunRecord
from maskwright.training.job import Job
from maskwright.training.objective import Objective


class Prepared(Protocol):
    """A run before anything of it is written. Errors are kinds of `InputError`."""

    @property
    def config(self) -> RunConfig | FinetuneConfig: ...

    @property
    def model(self) -> ModelConfig: ...

    @property
    def texts(self) -> tuple[RecordedText, dict[str, RecordedText]]:
        """Training and held-out texts, by name."""
        ...

    def record(self, given: Any, dtype: Any, before: RunRecord | None) -> RunRecord:
        """The run's record. `given`: the configuration as the command gives it. `before`: the record of a run that is
        continued."""
        ...

    @property
    def flops(self) -> float:
        """Model FLOPs of the whole run, roughly."""
        ...

    @property
    def micro_batch_losses(self) -> float:
        """See `RunFacts`."""
        ...

    @property
    def label_smoothing(self) -> float: ...

    @property
    def looked_up(self) -> NDArray[np.int64] | None:
        """See `RunFacts`."""
        ...

    @property
    def begins_from(self) -> str | None:
        """The location of the weights of step 0; None for random weights."""
        ...

    def began_from(self) -> BeganFrom:
        """The location of the weights of step 0 for the record, with their present checksums."""
        ...

    def verify(self) -> None:
        """Checks the data's checksums."""
        ...

    def starting_state(self) -> TrainState:
        """The state of step 0."""
        ...

    def objective(self) -> Objective: ...

    def data_card(self) -> dict[str, Any]:
        """`data.json` of the run directory: what the run trains on."""
        ...

    def write_tokenizer(self, folder: str) -> None: ...

    def describe(self, processes: int | None = None) -> str:
        """The model, the data and the steps in words, for `--dry-run` and the beginning of each run. `processes`: by
        default this start's."""
        ...

    def time_here(self, place: DeviceCount | None, done: int = 0) -> str | None:
        """The remaining time after `done` steps, in words; None if no step is left. `place`: see `devices.here`."""
        ...

    def warnings(self) -> list[str]: ...

    def keep_batch(self, job: Job, step: int, details: dict[str, Any]) -> str:
        """Keeps the batch of a failed step in the run directory. Returns its folder."""
        ...

    def finish(self, job: Job) -> None:
        """Ends the run after its last step, in all ranks."""
        ...
